"""The public implementation of AutoAttack beside ours: which images stand, and whether ours is weaker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from math import comb
from typing import Any

import torch
from torch import Tensor, nn

from allrounder.threats.threat import Threat

WHY = "pyautoattack, the public implementation to compare with, is not installed"
SUITE = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "aa")


def standing_by_theirs(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    attack: str,
    change: Callable[[Any], None] = lambda side: None,
) -> Tensor:
    """Which images the public code leaves standing: its standard version ("aa"), or one attack of it alone.

    `change` may alter the ensemble before it runs. All images go in one batch.
    """
    package = import_module("pyautoattack")
    side = package.AutoAttack(model, norm=threat.norm.name, eps=threat.eps, seed=0, device="cpu")
    if attack == "apgd-dlr":
        # No standard version has it; with one restart it is the attack of this name in every norm.
        side.apgd.n_restarts = 1
    if attack != "aa":
        side.attacks_to_run = [attack]
    change(side)
    # It seeds the random numbers of the whole process.
    with torch.random.fork_rng(devices=[]):
        found: Tensor = side.run_standard_evaluation(x, y, batch_size=len(x))[0]
    assert bool(threat.contains(x, found).all()), f"the public {attack} left {threat}"
    with torch.no_grad():
        return model(found).argmax(1) == y


@dataclass(frozen=True, eq=False)
class Duel:
    """An attack of both sides on the same images: which of them stand."""

    attack: str
    ours: Tensor
    theirs: Tensor

    @property
    def only_ours(self) -> int:
        """How many images only our attack breaks."""
        return int((~self.ours & self.theirs).sum())

    @property
    def only_theirs(self) -> int:
        """How many only the public one breaks."""
        return int((self.ours & ~self.theirs).sum())

    @property
    def weaker_by(self) -> int:
        """How many more images stand under ours; negative where it is the stronger one."""
        return self.only_theirs - self.only_ours

    @property
    def agreeing(self) -> int:
        """How many images have the same verdict."""
        return int((self.ours == self.theirs).sum())

    @property
    def p(self) -> float:
        """McNemar's exact test, one-sided: how likely so many images only the public attack breaks are, or
        more, if each image that one side alone breaks were either side's with the same chance."""
        apart = self.only_ours + self.only_theirs
        return sum(comb(apart, k) for k in range(self.only_theirs, apart + 1)) / 2**apart

    def __str__(self) -> str:
        a, b = (100 * float(side.double().mean()) for side in (self.ours, self.theirs))
        return (
            f"{self.attack:10}{a:9.1f}{b:9.1f}{self.only_ours:11}{self.only_theirs:13}"
            f"{100 * self.agreeing / len(self.ours):9.1f}{self.p:9.3f}"
        )


def table(title: str, duels: Iterable[Duel]) -> str:
    """A line for every attack: standing %, images that one side alone breaks, agreement %, p."""
    head = f"{'':10}{'ours %':>9}{'theirs %':>9}{'only ours':>11}{'only theirs':>13}{'agree %':>9}{'p':>9}"
    return "\n".join(["", title, head, *map(str, duels)])
