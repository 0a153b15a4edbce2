"""The outcome of an evaluation, image by image; all numbers of reports are derived from it, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from allrounder.config.text import shorten
from allrounder.errors import InputError
from allrounder.report.calibration import DEFAULT_BINS, Reliability, reliability
from allrounder.report.corruption_metrics import (
    FloatArray,
    Groups,
    accuracy_by_corruption,
    average_columns,
    mean_per_image_accuracy,
    metrics_by_perturbation,
    parse_shift_id,
    sources,
    standard_perturbations,
    to_smallest_dtype,
)
from allrounder.report.statistics import McNemar, format_percent, wilson_interval
from allrounder.system.checked_files import (
    check_version,
    damage_error,
    read_arrays,
    write_arrays,
)
from allrounder.system.field_checks import TABLE, TEXT, check_fields, list_of
from allrounder.system.summary import HasSummary, Summary

IntArray: TypeAlias = NDArray[np.int64]
Facts: TypeAlias = Mapping[str, Any]
Column: TypeAlias = tuple[str, str | None]
"""A column of a table: (probe, None), (attack, "worst" or "mean"), or an average over corruptions."""

FORMAT_VERSION = 2
"""The version of the file layout; files of another version are refused."""
OUTCOME_FILE = "outcome.safetensors"
"""The name of an outcome in a results folder."""
NATURAL = "natural"
JUDGE = "aa"
"""AutoAttack, which ranks networks. Other attacks overstate robustness, and not equally for all methods."""
THREAT_SUMMARIES = ("worst", "mean")
MIN_VARIANCE = 1e-12
"""A smaller variance is nothing but rounding."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Outcome(HasSummary):
    """The class that a network predicts for every image under every probe.

    Probes are named "natural" or "attack@threat", such as "pgd-20@Linf:8/255". An image that is misclassified
    without an attack keeps its natural prediction everywhere, and so counts as not robust. Corrupted images
    are probes too (see corruption_metrics.py); tables show averages of them.
    """

    label: IntArray
    predicted: Mapping[str, IntArray]
    facts: Facts = field(default_factory=dict[str, Any])
    """What a reader of the numbers must know: seed, batch size, how the weights were selected."""
    distance: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    """The norm of the perturbation that fools the network; 0 where it needs none, NaN where none does."""
    stage: Mapping[str, IntArray] = field(default_factory=dict[str, IntArray])
    """The stage of a cascade, from 1, that fools the network; 0 where it needs none, -1 where none does."""
    confidence: FloatArray | None = None
    """The softmax probability of the predicted class on every natural image; None if it was not measured."""

    def __post_init__(self) -> None:
        for kind in ("predicted", "distance", "stage"):
            for name, array in getattr(self, kind).items():
                if name not in self.predicted or array.shape != self.label.shape:
                    raise InputError(f"{kind} of {name}: no such probe, or not one number for every image")
        if self.confidence is not None and self.confidence.shape != self.label.shape:
            got = f"got {self.confidence.shape} numbers, expected {self.label.shape}"
            raise InputError(f"confidence: {got}, one for every image")

    def __len__(self) -> int:
        return len(self.label)

    def probes(self, attack: str) -> list[str]:
        """The names of an attack's probes, one for each threat."""
        return [name for name in self.predicted if name == attack or name.startswith(f"{attack}@")]

    def probe_names(self, attack: str, threat: str | None = None) -> list[str]:
        """The names of the probes behind a number: one, or several for a summary or an average."""
        if groups := self._average_groups(attack, threat):
            return [name for group in groups for name in group]
        names = self.probes(attack)
        wanted = attack if threat is None else f"{attack}@{threat}"
        if threat not in (None, *THREAT_SUMMARIES):
            names = [name for name in names if name == wanted or name.startswith(f"{wanted}:")]
        if not names or (len(names) > 1 and threat not in THREAT_SUMMARIES):
            probes = ", ".join(self.predicted)
            raise InputError(f"{wanted} names {len(names)} probes, expected one; there are: {probes}")
        return names

    def _average_groups(self, attack: str, threat: str | None) -> Groups:
        """The groups of a column of corrupted images, given its title or the beginning of it."""
        columns = average_columns(self.predicted).items()
        matching = [
            groups for (name, title), groups in columns if name == attack and title.startswith(threat or "")
        ]
        return matching[0] if len(matching) == 1 else ()

    def columns(self) -> list[Column]:
        """The columns of a table: natural, the other probes, worst and mean of attacks with several threats,
        averages over corruptions and perturbations, and corruptions that are in no average."""
        names = [name for name in self.predicted if parse_shift_id(name) is None]
        attacks = dict.fromkeys(name.partition("@")[0] for name in names)
        several = [attack for attack in attacks if len(self.probes(attack)) > 1]
        natural_first = sorted(names, key=lambda name: name != NATURAL)
        summaries = [(attack, summary) for attack in several for summary in THREAT_SUMMARIES]
        return [*((name, None) for name in natural_first), *summaries, *average_columns(self.predicted)]

    def per_image_accuracy(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """One number in [0, 1] for every image.

        `threat` is a norm ("Linf"), a full threat ("Linf:8/255"), "worst" (correct under every threat of the
        attack: the true union) or "mean" (over its threats: what Generalist++ calls Union). It may be left
        out if there is only one. For averages, `attack` is "corruptions" or "perturbations" and `threat` is
        the title of the column or its beginning ("severity 5"); the same holds for corruptions that are in no
        average ("spatter").
        """
        if groups := self._average_groups(attack, threat):
            return mean_per_image_accuracy(self.predicted, self.label, groups)
        correct = np.stack([self.predicted[name] == self.label for name in self.probe_names(attack, threat)])
        return (correct.min(0) if threat == "worst" else correct.mean(0)).astype(np.float64)

    def accuracy(self, attack: str = NATURAL, threat: str | None = None) -> float:
        """The share of images that stay correctly classified, in [0, 1]."""
        return float(self.per_image_accuracy(attack, threat).mean())

    def mean(self, attack: str) -> float:
        """Accuracy averaged over the attack's threats: the papers' "Union"."""
        return self.accuracy(attack, "mean")

    def worst(self, attack: str) -> float:
        """The share of images that are correct under every threat: the true union."""
        return self.accuracy(attack, "worst")

    def curve(self, attack: str, norm: str) -> list[tuple[float, float]]:
        """(eps, accuracy) for every threat of a norm under an attack, by rising eps."""
        prefix = f"{attack}@{norm}:"
        names = [name for name in self.predicted if name.startswith(prefix)]
        if not names:
            raise InputError(f"{attack}@{norm} names no probe; there are: {', '.join(self.predicted)}")
        eps = {name: parse_eps(name.removeprefix(prefix)) for name in names}
        return [(float(eps[name]), self.accuracy(name)) for name in sorted(eps, key=lambda name: eps[name])]

    def per_class(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """Accuracy of every class; NaN for a class without images."""
        accuracy = self.per_image_accuracy(attack, threat)
        classes = int(self.label.max()) + 1
        counts = np.bincount(self.label, minlength=classes)
        with np.errstate(invalid="ignore"):
            return np.bincount(self.label, weights=accuracy, minlength=classes) / counts

    def interval(self, attack: str = NATURAL, threat: str | None = None) -> tuple[float, float]:
        """Wilson's 95% interval of an accuracy p over n images.

        The mean over several probes varies less between images than a single yes or no. With the variance v
        of the per-image accuracies, n images are worth n p (1 - p) / v yes-or-no trials; n is used if v is 0.
        """
        per_image = self.per_image_accuracy(attack, threat)
        n, accuracy, variance = len(per_image), float(per_image.mean()), float(per_image.var())
        is_binary = bool(((per_image == 0) | (per_image == 1)).all())
        trials = n if is_binary or variance < MIN_VARIANCE else n * accuracy * (1 - accuracy) / variance
        return wilson_interval(accuracy, trials)

    def calibration(self, bins: int = DEFAULT_BINS) -> Reliability:
        """Confidence and accuracy on natural images, in bins of equal width; `.ece` is their mean gap."""
        if self.confidence is None:
            advice = "evaluate again into the same folder, which adds them"
            raise InputError(f"calibration: the outcome has no confidences; {advice}")
        return reliability(self.predicted[NATURAL] == self.label, self.confidence, bins)

    def corruptions(self) -> dict[str, dict[int, float]]:
        """Accuracy under every corruption at every severity that was evaluated.

        If there are official and generated images, the names say which: "fog (official)".
        """
        return accuracy_by_corruption(self.predicted, self.label)

    def perturbations(self) -> dict[str, tuple[float, float]]:
        """Accuracy over all frames, and flip rate, of every perturbation; named as in `corruptions`."""
        return metrics_by_perturbation(self.predicted, self.label)

    def flip_rate(self, perturbation: str | None = None) -> float:
        """How often the predicted class changes along a perturbation, or on average along the standard ones
        that were measured."""
        rates = {name: flips for name, (_, flips) in self.perturbations().items()}
        if not rates or perturbation not in (None, *rates):
            measured = ", ".join(rates) or "none"
            raise InputError(f"flip rate: {perturbation or 'any'} was not measured; there are: {measured}")
        if perturbation is not None:
            return rates[perturbation]
        if len(sources(self.predicted, "p")) > 1:
            raise InputError(
                f"flip rate: official and generated do not mix; choose one of: {', '.join(rates)}"
            )
        averaged = standard_perturbations(rates)
        if not averaged:
            raise InputError(
                f"flip rate: no standard perturbation was measured; choose one of: {', '.join(rates)}"
            )
        return sum(averaged.values()) / len(averaged)

    def accuracy_by_stage(self, probe: str) -> list[float]:
        """Accuracy after each stage of a cascade; the last one is the accuracy under the whole cascade.

        Without the fact "stages", final stages that fool the network on no image are missing.
        """
        (name,) = self.probe_names(probe)
        if name not in self.stage:
            raise InputError(f"{name} has no stages; these have: {', '.join(self.stage) or 'none'}")
        stage = self.stage[name]
        robust = self.predicted[name] == self.label
        count = max(len(self.facts.get("stages", {}).get(name, ())), int(stage.max(initial=0)))
        return [float((robust | (stage > done)).mean()) for done in range(1, count + 1)]

    def mcnemar(self, other: Outcome, attack: str = NATURAL, threat: str | None = None) -> McNemar:
        """Compare with another network under the same probe, image by image."""
        self._check_same_images("mcnemar", other)
        names, other_names = self.probe_names(attack, threat), other.probe_names(attack, threat)
        if set(names) != set(other_names) or (threat != "worst" and len(names) > 1):
            raise InputError(
                f"mcnemar: got {threat} of {names} and {other_names}, expected the same yes or no"
            )
        a, b = (outcome.per_image_accuracy(attack, threat) > 0 for outcome in (self, other))
        return McNemar(*(int(count.sum()) for count in (a & b, a & ~b, ~a & b, ~a & ~b)))

    def disagreements(self, other: Outcome) -> dict[str, list[int]]:
        """The positions of images that another evaluation of the same images predicts differently, by probe.

        Another batch size, for example, may change a few. Only probes that both have are compared.
        """
        self._check_same_images("disagreements", other)
        pairs = {name: (self.predicted[name], other.predicted.get(name)) for name in self.predicted}
        return {name: np.flatnonzero(a != b).tolist() for name, (a, b) in pairs.items() if b is not None}

    def _check_same_images(self, method: str, other: Outcome) -> None:
        if difference := self._find_other_images(other):
            expected = "expected the same images in order"
            raise InputError(f"{method}: got outcomes with different {difference}, {expected}")

    def _find_other_images(self, other: Outcome) -> str:
        """What shows that another outcome is about other images: labels or a digest; empty for nothing."""
        if not np.array_equal(self.label, other.label):
            return "labels"
        keys = [key for key in ("data", "rows") if key in self.facts and key in other.facts]
        return next((key for key in keys if self.facts[key] != other.facts[key]), "")

    def has_same_images(self, other: Outcome) -> bool:
        """Whether another outcome is about the same images in the same order, by labels and digests."""
        return not self._find_other_images(other)

    def __str__(self) -> str:
        words: list[str] = []
        for column in self.columns():
            word = " ".join([*filter(None, column), format_percent(self.accuracy(*column))])
            if column[0] != NATURAL:
                word += f" [{', '.join(map(format_percent, self.interval(*column)))}]"
            words.append(word)
        return "  ".join([*words, f"n={len(self)}"])

    @override
    def summary(self) -> Summary:
        """Describe the accuracy in percent and the 95% interval of every column."""
        rows: list[tuple[str, str]] = []
        for column in self.columns() if len(self) else []:
            accuracy, low, high = map(format_percent, (self.accuracy(*column), *self.interval(*column)))
            rows.append((" ".join(filter(None, column)), f"{accuracy} ({low}-{high})"))
        return Summary(f"Outcome of {len(self)} images", rows)

    def table(self, style: str = "markdown", about: Facts | None = None, threat: str | None = None) -> str:
        """The numbers as a table; see `render` for the styles, `about` and `threat`."""
        from allrounder.report.render import render  # imports this module

        return render({(about or {}).get("name", "network"): self}, style, about=about, threat=threat)

    def save(self, path: str | Path) -> None:
        """Write one file without timestamps: equal outcomes give equal bytes, also of NaN.

        The array "confidence" is optional. Files without it load as before, and readers that do not know it
        ignore it, so it needs no new format version.
        """
        arrays = {"label": self.label}
        for name, array in self.predicted.items():
            arrays[f"predicted/{name}"] = to_smallest_dtype(array) if parse_shift_id(name) else array
        arrays |= {f"distance/{name}": np.where(np.isnan(d), np.nan, d) for name, d in self.distance.items()}
        arrays |= {f"stage/{name}": stage for name, stage in self.stage.items()}
        arrays |= {} if self.confidence is None else {"confidence": self.confidence}
        content = {"format": FORMAT_VERSION, "facts": dict(self.facts), "probes": list(self.predicted)}
        write_arrays(Path(path), arrays, content)

    @classmethod
    def load(cls, path: str | Path) -> Outcome:
        """Read a file that `save` wrote; raise RunError if it is damaged or of another version."""
        path = Path(path)
        advice = "move it away and evaluate again, which reuses stored results"
        try:
            arrays, content = read_arrays(path)
            if "probes" not in content:
                raise ValueError("it is not an outcome")
            if content.get("format") == FORMAT_VERSION:
                _check_content(arrays, content)
        except (OSError, ValueError) as error:
            raise damage_error(path, error, advice) from None
        check_version(path, content.get("format"), FORMAT_VERSION, advice)
        names: list[str] = content["probes"]
        predicted = {name: arrays[f"predicted/{name}"].astype(np.int64) for name in names}
        distance, stage = (
            {name: arrays[key] for name in names if (key := f"{kind}/{name}") in arrays}
            for kind in ("distance", "stage")
        )
        confidence = arrays.get("confidence")
        return cls(arrays["label"], predicted, content["facts"], distance, stage, confidence)


def _check_content(arrays: Mapping[str, NDArray[Any]], content: dict[str, Any]) -> None:
    """Raise ValueError unless a file has the fields of an outcome, and numbers for every image."""
    check_fields(content, {"probes": list_of(TEXT), "facts": TABLE})
    needed = ["label", *(f"predicted/{name}" for name in content["probes"])]
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(f"it has no array {shorten(missing[0])}")
    for name, array in arrays.items():
        is_integer = array.dtype.kind in "iu"
        if len(array.shape) == 0 or len(array) != len(arrays["label"]) or (name in needed and not is_integer):
            raise ValueError(f"the array {shorten(name)} has not one number for every image")


def parse_eps(budget: str) -> Fraction:
    """The eps of a threat as it is written, such as 8/255 or 0.5/255."""
    numerator, *denominator = map(Fraction, budget.split("/"))
    return numerator / denominator[0] if denominator else numerator
