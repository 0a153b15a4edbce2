"""Per-example results of an evaluation; every number is derived from them, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from allrounder.report.corruption_metrics import (
    by_corruption,
    by_perturbation,
    compact,
    group_scores,
    groups,
    sources,
    view_of,
)
from allrounder.report.statistics import Paired, percent, wilson

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Facts: TypeAlias = Mapping[str, Any]

NATURAL = "natural"
JOINED = ("worst", "mean")
AVERAGES = ("corruptions", "perturbations")
TINY = 1e-12
"""A variance that is nothing but rounding."""


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """What a network said about every image under every probe.

    Probes are called "natural" or "attack@threat", such as "pgd-20@Linf:8/255". A point that is wrong without
    an attack keeps its natural prediction everywhere, and so counts as not robust. Images that were changed
    without an adversary are probes too, see `shifts`: tables show averages of them.
    """

    label: IntArray
    predicted: Mapping[str, IntArray]
    facts: Facts = field(default_factory=dict[str, Any])
    """What a reader of the numbers must know: seed, lane width, how the weights were selected."""
    distance: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    """The norm of the perturbation that broke each image; 0 where it needs none, NaN where none did."""
    stage: Mapping[str, IntArray] = field(default_factory=dict[str, IntArray])
    """Of a cascade: the stage, from 1, that broke each image; 0 where it needs none, -1 where none did."""

    def __post_init__(self) -> None:
        for kind, arrays in self._arrays().items():
            for name, array in arrays.items():
                if name not in self.predicted or array.shape != self.label.shape:
                    raise ValueError(f"{kind} of {name}: no such probe, or not one number for every image")

    def _arrays(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        return {"predicted": self.predicted, "distance": self.distance, "stage": self.stage}

    def __len__(self) -> int:
        return len(self.label)

    def probes(self, attack: str) -> list[str]:
        """The names of an attack's probes, one for each threat."""
        return [name for name in self.predicted if name == attack or name.startswith(f"{attack}@")]

    def behind(self, attack: str, threat: str | None = None) -> list[str]:
        """The names of the probes behind a number: one, or with "worst" or "mean" all of the attack."""
        if parts := self._average(attack, threat):
            return [name for part in parts for name in part]
        names, wanted = self.probes(attack), attack if threat is None else f"{attack}@{threat}"
        if threat not in (None, *JOINED):
            names = [name for name in names if name == wanted or name.startswith(f"{wanted}:")]
        if not names or (len(names) > 1 and threat not in JOINED):
            known = ", ".join(self.predicted)
            raise KeyError(f"{wanted} names {len(names)} probes, expected one; there are: {known}")
        return names

    def _average(self, attack: str, threat: str | None) -> list[list[str]]:
        """The parts of a column of changed images, by its title or the beginning of it."""
        titled = {title: parts for (of, title), parts in groups(self.predicted).items() if of == attack}
        found = [parts for title, parts in titled.items() if title.startswith(threat or "")]
        return found[0] if len(found) == 1 else []

    def columns(self) -> list[tuple[str, str | None]]:
        """What a table shows: natural, the other probes, worst and mean of attacks with several threats,
        averages over corruptions and perturbations, and corruptions that are in none."""
        names = [name for name in self.predicted if view_of(name) is None]
        attacks = dict.fromkeys(name.partition("@")[0] for name in names)
        several = [attack for attack in attacks if len(self.probes(attack)) > 1]
        first = sorted(names, key=lambda name: name != NATURAL)
        joined = [(attack, how) for attack in several for how in JOINED]
        return [*((name, None) for name in first), *joined, *groups(self.predicted)]

    def scores(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """One number in [0, 1] for every image.

        `threat` is a norm ("Linf"), a full threat ("Linf:8/255"), "worst" (correct under every threat of the
        attack: the true union) or "mean" (over its threats: what Generalist++ calls Union). It may be left
        out where there is only one. Averages are "corruptions" or "perturbations", with the title of the
        column or its beginning ("severity 5"); so are corruptions that are in none ("spatter").
        """
        if parts := self._average(attack, threat):
            return group_scores(self.predicted, self.label, parts)
        correct = np.stack([self.predicted[name] == self.label for name in self.behind(attack, threat)])
        return (correct.min(0) if threat == "worst" else correct.mean(0)).astype(np.float64)

    def accuracy(self, attack: str = NATURAL, threat: str | None = None) -> float:
        """The share of images that stay correctly classified, in [0, 1]."""
        return float(self.scores(attack, threat).mean())

    def mean(self, attack: str) -> float:
        """Accuracy averaged over the attack's threats: the papers' "Union"."""
        return self.accuracy(attack, "mean")

    def worst(self, attack: str) -> float:
        """The share of images that are correct under every threat of the attack: the true union."""
        return self.accuracy(attack, "worst")

    def curve(self, attack: str, norm: str) -> list[tuple[float, float]]:
        """Accuracy against eps: (eps, accuracy) for every threat of a norm under an attack, by rising eps."""
        start = f"{attack}@{norm}:"
        eps = {name: _eps(name.removeprefix(start)) for name in self.predicted if name.startswith(start)}
        if not eps:
            raise KeyError(f"{attack}@{norm} names no probe; there are: {', '.join(self.predicted)}")
        return [(float(eps[name]), self.accuracy(name)) for name in sorted(eps, key=lambda name: eps[name])]

    def per_class(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """Accuracy of every class; not a number where a class has no image."""
        scores, classes = self.scores(attack, threat), int(self.label.max()) + 1
        counts = np.bincount(self.label, minlength=classes)
        with np.errstate(invalid="ignore"):
            return np.bincount(self.label, weights=scores, minlength=classes) / counts

    def interval(self, attack: str = NATURAL, threat: str | None = None) -> tuple[float, float]:
        """The 95% interval of an accuracy p over n images: Wilson's, as of so many yes or no as are as sure.

        A mean over probes scatters less from image to image than yes or no do: with the variance v of its
        scores, n images are worth n p (1 - p) / v of them. Where v is 0 that is unknown, and n is taken.
        """
        scores = self.scores(attack, threat)
        share, variance = float(scores.mean()), float(scores.var())
        plain = bool(((scores == 0) | (scores == 1)).all()) or variance < TINY
        return wilson(share, len(scores) if plain else len(scores) * share * (1 - share) / variance)

    def corruptions(self) -> dict[str, dict[int, float]]:
        """Accuracy under every corruption at every severity that was measured.

        Where there are official and generated images, names say which: "fog (official)".
        """
        return by_corruption(self.predicted, self.label)

    def perturbations(self) -> dict[str, tuple[float, float]]:
        """Accuracy over all frames of every perturbation that was measured, and its flip rate; named as
        corruptions are."""
        return by_perturbation(self.predicted, self.label)

    def flip_rate(self, perturbation: str | None = None) -> float:
        """How often the class changes along a perturbation, or along all of them on average; see `shifts`."""
        rates = {name: flips for name, (_, flips) in self.perturbations().items()}
        if not rates or perturbation not in (None, *rates):
            known = ", ".join(rates) or "none"
            raise KeyError(f"flip rate: {perturbation or 'any'} was not measured; there are: {known}")
        if perturbation is None and len(sources(self.predicted, "p")) > 1:
            raise KeyError(f"flip rate: official and generated do not mix; choose one of: {', '.join(rates)}")
        return rates[perturbation] if perturbation is not None else sum(rates.values()) / len(rates)

    def after(self, probe: str) -> list[float]:
        """Accuracy after each stage of a cascade; the last is the accuracy under all of it.

        The fact "stages" names the stages of every probe; without it, those that break nothing at the end
        are not known of.
        """
        (name,) = self.behind(probe)
        if name not in self.stage:
            raise KeyError(f"{name} has no stages; these have: {', '.join(self.stage) or 'none'}")
        stage, kept = self.stage[name], self.predicted[name] == self.label
        count = max(len(self.facts.get("stages", {}).get(name, ())), int(stage.max(initial=0)))
        return [float((kept | (stage > done)).mean()) for done in range(1, count + 1)]

    def mcnemar(self, other: Outcome, attack: str = NATURAL, threat: str | None = None) -> Paired:
        """Compare with another network under the same probe, image by image."""
        self._check_same_images("mcnemar", other)
        mine, theirs = self.behind(attack, threat), other.behind(attack, threat)
        if set(mine) != set(theirs) or (threat != "worst" and len(mine) > 1):
            raise ValueError(f"mcnemar: got {threat} of {mine} and {theirs}, expected the same yes or no")
        a, b = (outcome.scores(attack, threat) > 0 for outcome in (self, other))
        return Paired(*(int(cell.sum()) for cell in (a & b, a & ~b, ~a & b, ~a & ~b)))

    def _check_same_images(self, who: str, other: Outcome) -> None:
        if not np.array_equal(self.label, other.label):
            raise ValueError(f"{who}: got outcomes with different labels, expected the same images in order")
        for key in ("data", "rows"):
            if key in self.facts and key in other.facts and self.facts[key] != other.facts[key]:
                raise ValueError(f"{who}: got outcomes of different {key}, expected the same images in order")

    def differences(self, other: Outcome) -> dict[str, list[int]]:
        """The images, by position, of which another evaluation of the same ones says something else, under
        each probe that both have: at another lane width, say."""
        self._check_same_images("differences", other)
        shared = [name for name in self.predicted if name in other.predicted]
        return {
            name: np.flatnonzero(self.predicted[name] != other.predicted[name]).tolist() for name in shared
        }

    @classmethod
    def merge(cls, parts: Sequence[Outcome]) -> Outcome:
        """Join the parts of one evaluation, in this order; all facts but the number of images are equal."""
        if not parts:
            raise ValueError("merge: got no parts, expected one or more")
        told = [{**p.facts, "images": 0} | {k: list(a) for k, a in p._arrays().items()} for p in parts]
        for number, facts in enumerate(told, 1):
            for key in told[0] | facts:
                if (one := told[0].get(key)) != (other := facts.get(key)):
                    raise ValueError(f"merge: {key} is {one} in part 1, but {other} in part {number}")
        joined: dict[str, Any] = {
            kind: {name: np.concatenate([p._arrays()[kind][name] for p in parts]) for name in arrays}
            for kind, arrays in parts[0]._arrays().items()
        }
        label = np.concatenate([part.label for part in parts])
        return cls(label, facts={**parts[0].facts, "images": len(label)}, **joined)

    def __str__(self) -> str:
        words: list[str] = []
        for attack, threat in self.columns():
            interval = f" [{', '.join(percent(end) for end in self.interval(attack, threat))}]"
            words.append(f"{attack} {threat or ''}".strip() + f" {percent(self.accuracy(attack, threat))}")
            words[-1] += "" if attack == NATURAL else interval
        return "  ".join([*words, f"n={len(self)}"])

    def table(self, style: str = "markdown", about: Facts | None = None, threat: str | None = None) -> str:
        """The numbers as text, in a style of tables.py, where `about` and `threat` are explained."""
        from allrounder.report.tables import render  # which imports this module

        return render({(about or {}).get("name", "network"): self}, style, about=about, threat=threat)

    def save(self, path: Path) -> None:
        """Write one file without clock times: equal outcomes give equal bytes."""
        # NaN has many forms.
        distance = {name: np.where(np.isnan(far), np.nan, far) for name, far in self.distance.items()}
        shifted = {name: compact(array) if view_of(name) else array for name, array in self.predicted.items()}
        kinds = {**self._arrays(), "distance": distance, "predicted": shifted}
        arrays = {f"{kind}/{name}": array for kind, of in kinds.items() for name, array in of.items()}
        # The format keeps neither the order of arrays nor that of several texts.
        facts = json.dumps({"facts": dict(self.facts), "probes": list(self.predicted)}, sort_keys=True)
        plain = {name: np.ascontiguousarray(array) for name, array in {"label": self.label, **arrays}.items()}
        data = save(plain, metadata={"outcome": facts})
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what `save` wrote."""
        opened: Any = safe_open(path, framework="numpy")
        with opened as file:
            metadata: dict[str, str] = file.metadata() or {}
            if "outcome" not in metadata:
                raise ValueError(f"{path}: holds no outcome; it has: {', '.join(file.keys())}")
            facts: dict[str, Any] = json.loads(metadata["outcome"])
            arrays: dict[str, Any] = {key: file.get_tensor(key) for key in list(file.keys())}
        more = {
            kind: {name: arrays[key] for name in facts["probes"] if (key := f"{kind}/{name}") in arrays}
            for kind in ("distance", "stage")
        }
        predicted = {name: arrays[f"predicted/{name}"].astype(np.int64) for name in facts["probes"]}
        return cls(arrays["label"], predicted, facts["facts"], **more)


def _eps(budget: str) -> Fraction:
    """The budget of a threat as it is written, such as 8/255 or 0.5/255."""
    above, *below = map(Fraction, budget.split("/"))
    return above / below[0] if below else above
