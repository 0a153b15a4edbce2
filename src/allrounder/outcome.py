"""Per-example results of an evaluation; every number is derived from them, without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]

NATURAL = "natural"
Z95 = 1.959963984540054


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """What a network said about every image under every probe.

    Probes are called "natural" or "attack@threat", such as "pgd-20@Linf:8/255". A point that is wrong without
    an attack keeps its natural prediction everywhere, and so counts as not robust.
    """

    label: IntArray
    predicted: Mapping[str, IntArray]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a reader of the numbers must know: seed, lane width, how the weights were selected."""

    def __len__(self) -> int:
        return len(self.label)

    def probes(self, attack: str) -> list[str]:
        """The names of an attack's probes, one for each threat."""
        return [name for name in self.predicted if name == attack or name.startswith(f"{attack}@")]

    def scores(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """One number in [0, 1] for every image.

        `threat` is a norm ("Linf"), a full threat ("Linf:8/255"), "worst" (correct under every threat of the
        attack: the true union) or "mean" (over its threats: what Generalist++ calls Union). It may be left
        out where there is only one.
        """
        names, joined = self.probes(attack), threat in ("worst", "mean")
        if threat is not None and not joined:
            names = [n for n in names if n == f"{attack}@{threat}" or n.startswith(f"{attack}@{threat}:")]
        if not names or (len(names) > 1 and not joined):
            wanted = attack if threat is None else f"{attack}@{threat}"
            raise KeyError(
                f"{wanted} names {len(names)} probes, expected one; there are: {', '.join(self.predicted)}"
            )
        correct = np.stack([self.predicted[name] == self.label for name in names]).astype(np.float64)
        return correct.min(0) if threat == "worst" else correct.mean(0)

    def accuracy(self, attack: str = NATURAL, threat: str | None = None) -> float:
        """The share of images that stay correctly classified, in [0, 1]."""
        return float(self.scores(attack, threat).mean())

    def mean(self, attack: str) -> float:
        """Accuracy averaged over the attack's threats: the papers' "Union"."""
        return self.accuracy(attack, "mean")

    def worst(self, attack: str) -> float:
        """The share of images that are correct under every threat of the attack: the true union."""
        return self.accuracy(attack, "worst")

    def per_class(self, attack: str = NATURAL, threat: str | None = None) -> FloatArray:
        """Accuracy of every class; not a number where a class has no image."""
        scores, classes = self.scores(attack, threat), int(self.label.max()) + 1
        counts = np.bincount(self.label, minlength=classes)
        with np.errstate(invalid="ignore"):
            return np.bincount(self.label, weights=scores, minlength=classes) / counts

    def interval(self, attack: str = NATURAL, threat: str | None = None) -> tuple[float, float]:
        """The 95% interval of an accuracy: Wilson's for shares, the normal one for a mean over threats."""
        scores = self.scores(attack, threat)
        if threat != "mean":
            return wilson(float(scores.mean()), len(scores))
        half = Z95 * float(scores.std()) / math.sqrt(len(scores))
        return max(float(scores.mean()) - half, 0.0), min(float(scores.mean()) + half, 1.0)

    def save(self, path: Path) -> None:
        """Write one file without clock times: equal outcomes give equal bytes."""
        arrays = {"label": self.label, **{f"predicted/{name}": p for name, p in self.predicted.items()}}
        # The format keeps neither the order of arrays nor that of several texts.
        facts = json.dumps({"facts": dict(self.facts), "probes": list(self.predicted)}, sort_keys=True)
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
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
            predicted = {name: file.get_tensor(f"predicted/{name}") for name in facts["probes"]}
            return cls(file.get_tensor("label"), predicted, facts["facts"])


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `count` trials."""
    if count == 0:
        return 0.0, 1.0
    centre = (share + Z95**2 / (2 * count)) / (1 + Z95**2 / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2)) / (1 + Z95**2 / count)
    # At 0 and 1 the interval ends at the share itself, but for rounding.
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)
