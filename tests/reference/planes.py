"""How far the next mistake of a linear network is inside the box, by trying every kind of perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

ORDER = {"Linf": np.inf, "L2": 2, "L1": 1}
DUAL = {"Linf": 1, "L2": 2, "L1": np.inf}


def shortest(name: str, x: Array, w: Array, c: Array) -> Array:
    """The least length of a d with w.d >= c and x + d in the box, for every row; infinite if there is none.

    The shortest d ends on the plane, and each of its coordinates is of one of a few kinds: up to a wall, or
    else as far as the others (Linf), as far as its slope says (L2), or zero but for one (L1). So every
    combination is tried, and the shortest one that stays in the box is it.
    """
    none, one = np.zeros_like(x), np.ones_like(x)
    rest = {"Linf": [(none, one), (none, -one)], "L2": [(none, w)], "L1": [(none, none), (none, one)]}[name]
    # Of each kind, what stays, and what is multiplied with the level at which the plane is met.
    kinds = [(-x, none), (1 - x, none), *rest]
    tries = np.array(list(product(range(len(kinds)), repeat=x.shape[1])))
    if name == "L1":
        tries = tries[(tries == 3).sum(1) == 1]
    pixels = np.arange(x.shape[1])
    still, moving = (np.stack([kind[i] for kind in kinds], 1)[:, tries, pixels] for i in (0, 1))
    speed = (moving * w[:, None]).sum(2)
    missing = c[:, None] - (still * w[:, None]).sum(2)
    moves = np.abs(speed) > 1e-12
    level = np.divide(missing, speed, out=np.zeros_like(speed), where=moves)
    d = still + level[:, :, None] * moving
    end = x[:, None] + d
    allowed = moves & ((end > -1e-9) & (end < 1 + 1e-9)).all(2)
    length = np.where(allowed, np.linalg.norm(d, ORDER[name], axis=2), np.inf).min(1)
    return np.where(c <= 0, 0, length)


@dataclass(frozen=True, eq=False)
class Planes:
    """A linear network: class k wins where weight_k.x + bias_k is largest."""

    weight: Array
    bias: Array

    def predict(self, x: Array) -> Ints:
        return (x @ self.weight.T + self.bias).argmax(1)

    def distance(self, name: str, x: Array, y: Ints) -> Array:
        """How far the next image is that is not won by y."""
        w, c = self._rivals(x, y)
        rows = np.repeat(x, w.shape[1], axis=0)
        return shortest(name, rows, w.reshape(len(rows), -1), c.reshape(-1)).reshape(c.shape).min(1)

    def distance_without_box(self, name: str, x: Array, y: Ints) -> Array:
        """The same where pixels may have any value: c / |w|, in the dual norm."""
        w, c = self._rivals(x, y)
        return (c / np.linalg.norm(w, DUAL[name], axis=2)).min(1)

    def _rivals(self, x: Array, y: Ints) -> tuple[Array, Array]:
        """For every other class, the slope w of z_k - z_y and what it still has to gain."""
        z, rows = x @ self.weight.T + self.bias, np.arange(len(y))[:, None]
        others = np.array([[k for k in range(len(self.bias)) if k != label] for label in y])
        return self.weight[others] - self.weight[y][:, None], z[rows, y[:, None]] - z[rows, others]
