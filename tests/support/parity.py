"""Compares our attacks with the public implementation of AutoAttack: which images are robust under each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from math import comb
from typing import Any

import torch
from torch import Tensor, nn

from allrounder.threats.threat import Threat

SKIP_REASON = "pyautoattack, the public implementation to compare with, is not installed"
PARITY_ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "aa")


def robust_under_public(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    attack: str,
    change: Callable[[Any], None] = lambda public: None,
) -> Tensor:
    """Which images are robust under the public code: its standard version ("aa"), or one of its attacks.

    `change` may alter the ensemble before it runs. All images form one batch.
    """
    package = import_module("pyautoattack")
    public = package.AutoAttack(model, norm=threat.norm.name, eps=threat.eps, seed=0, device="cpu")
    if attack == "apgd-dlr":
        # No standard version contains it; with one restart it is the attack of this name in every norm.
        public.apgd.n_restarts = 1
    if attack != "aa":
        public.attacks_to_run = [attack]
    change(public)
    # The public code seeds the global generator.
    with torch.random.fork_rng(devices=[]):
        x_adv: Tensor = public.run_standard_evaluation(x, y, batch_size=len(x))[0]
    assert bool(threat.contains(x, x_adv).all()), f"the public {attack} left {threat}"
    with torch.no_grad():
        return model(x_adv).argmax(1) == y


@dataclass(frozen=True, eq=False)
class Comparison:
    """One attack by both implementations on the same images; `ours` and `theirs` tell which are robust."""

    attack: str
    ours: Tensor
    theirs: Tensor

    @property
    def only_ours(self) -> int:
        """The number of images that only our attack fools."""
        return int((~self.ours & self.theirs).sum())

    @property
    def only_theirs(self) -> int:
        """The number of images that only the public attack fools."""
        return int((self.ours & ~self.theirs).sum())

    @property
    def weaker_by(self) -> int:
        """How many more images are robust under ours; negative where ours is stronger."""
        return self.only_theirs - self.only_ours

    @property
    def num_agreeing(self) -> int:
        """The number of images on which both agree."""
        return int((self.ours == self.theirs).sum())

    @property
    def p(self) -> float:
        """The one-sided p-value of McNemar's exact test against the hypothesis that ours is not weaker."""
        disagreeing = self.only_ours + self.only_theirs
        return sum(comb(disagreeing, k) for k in range(self.only_theirs, disagreeing + 1)) / 2**disagreeing

    def __str__(self) -> str:
        a, b = (100 * float(robust.double().mean()) for robust in (self.ours, self.theirs))
        return (
            f"{self.attack:10}{a:9.1f}{b:9.1f}{self.only_ours:11}{self.only_theirs:13}"
            f"{100 * self.num_agreeing / len(self.ours):9.1f}{self.p:9.3f}"
        )


def table(title: str, comparisons: Iterable[Comparison]) -> str:
    """A row for each attack: robust %, images that only one side fools, agreement %, p."""
    head = f"{'':10}{'ours %':>9}{'theirs %':>9}{'only ours':>11}{'only theirs':>13}{'agree %':>9}{'p':>9}"
    return "\n".join(["", title, head, *map(str, comparisons)])
