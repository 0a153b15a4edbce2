"""Friendly adversarial training: adversarial images that are just wrong, not as wrong as can be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

from pydantic import AfterValidator
from torch import nn

from allrounder.attacks.base import Crafted, perturb
from allrounder.attacks.early_stop_pgd import Friendly
from allrounder.config.fields import Kind, NonNegative, value
from allrounder.config.schedules import Constant, Schedule, Step, disordered
from allrounder.config.time import Time
from allrounder.objectives.base import Objective, fit
from allrounder.objectives.trades import traded
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


def _whole(tau: Schedule | None) -> Schedule | None:
    wrong = [number for number in (tau.extremes() if tau else ()) if number < 0 or number != int(number)]
    if wrong:
        got = ", ".join(f"{number:g}" for number in wrong)
        raise ValueError(f"tau counts steps, expected whole numbers of at least 0, got {got}; write such")
    return tau


STEPS_OF_TIME: dict[str, type[Schedule]] = {"constant": Constant, "step": Step}
"""Schedules that only take the values that are written."""
Spared = Annotated[
    Schedule | None, Kind(lambda: STEPS_OF_TIME, number=Constant, optional=True), AfterValidator(_whole)
]


def _after(*epochs: int, of: int) -> Step:
    """0 at first, and one more after each of these epochs, in their place in a run of any length."""
    at = tuple(Time(Fraction(epoch, of), "run") for epoch in (0, *epochs))
    return Step(at=at, to=tuple(float(number) for number in range(len(at))))


OF_VARIANT = {
    "at": (Friendly(), _after(50, 90, of=120)),
    "trades": (Friendly(omega=0.0, loss="kl", start="gaussian"), _after(30, 50, 70, of=85)),
}
"""The released search and tau: 0, 1, 2 in epochs 1-50, 51-90, 91-120 of 120; 0, 1, 2, 3 in epochs 1-30,
31-50, 51-70, 71-85 of 85."""


@final
@value
class Fat(Objective):
    """Friendly adversarial training (FAT): loss = CE(f(x'), y), with x' of PGD that stops when it succeeds.

    The search leaves an image tau steps after it is first misclassified (see `Friendly`), and tau rises
    during the run. With variant = "trades" the search climbs the divergence and the loss is that of TRADES,
    CE(f(x), y) + beta KL(p(x) || p(x')). Zhang et al., 2020, Attacks which do not kill training make
    adversarial learning stronger.
    """

    reference: ClassVar[str] = "Zhang et al., 2020"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    variant: Literal["at", "trades"] = "at"
    """Which training is made friendly."""
    attack: Annotated[Friendly | None, Kind(lambda: {"friendly": Friendly}, optional=True)] = None
    """The search, with its tau left at 0; by default the one released for the variant."""
    tau: Spared = None
    """Steps after the first misclassification; by default the schedule released for the variant. Its times
    are compared with what is done of the run: the value written at 50 holds from epoch 51 on."""
    beta: NonNegative = 6.0
    """The weight of the divergence, for the variant trades."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    def __post_init__(self) -> None:
        self.search.check_supports(self.threat)
        if self.search.tau:
            raise ValueError(
                f"the attack's tau is {self.search.tau}, expected 0: it follows the objective's own tau; "
                "write it there"
            )

    @property
    def search(self) -> Friendly:
        """The attack in force, but for its tau."""
        return OF_VARIANT[self.variant][0] if self.attack is None else self.attack

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's, where nothing stops early."""
        return self.search.passes()

    def loss_passes(self) -> Passes:
        """One pair; two for the variant trades."""
        return Passes(1, 1) * (2 if self.variant == "trades" else 1)

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """Times of tau that the run does not reach, or that are out of order in it."""
        times = () if self.tau is None else self.tau.times()
        found = [
            f"changes after {float(time.epochs(epochs)):g} epochs, expected less than the {epochs} of the "
            "run; choose an earlier time"
            for time in times
            if time.epochs(epochs) >= epochs
        ]
        if said := disordered(pairwise(times), epochs):
            found.append(f"{said}, of {epochs} epochs")
        return [("tau", said) for said in found]

    def spared(self, ctx: Context) -> int:
        """tau in a step."""
        schedule = OF_VARIANT[self.variant][1] if self.tau is None else self.tau
        clock = ctx.clock
        done = (ctx.epoch - 1) * clock.steps if clock.pace == "epoch" else ctx.t - 1
        return int(schedule(done, clock))

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Search until the current network is fooled, and tau steps more."""
        attack, draws = replace(self.search, tau=self.spared(ctx)), ctx.draws.at("attack")
        return perturb(attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """The variant's loss, and how many steps an image took on average."""
        assert crafted is not None and crafted.steps is not None
        if self.variant == "trades":
            natural = model(batch.x)
            found = traded(natural, model(crafted.x), batch, self.beta)
        else:
            found = fit(model(crafted.x), batch)
        return Loss(found.total, {**found.parts, "steps": crafted.steps.float().mean()})
