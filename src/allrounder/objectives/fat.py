"""Friendly adversarial training: adversarial images that are only just misclassified."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

from pydantic import AfterValidator
from torch import nn
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.early_stop_pgd import EarlyStopPgd
from allrounder.config.fields import NonNegativeFloat, OneOf, frozen_config
from allrounder.config.schedules import Constant, Schedule, Step, order_problem
from allrounder.config.time import Time
from allrounder.objectives.base import SingleThreatObjective, cross_entropy_loss
from allrounder.objectives.trades import trades_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Loss, Passes


def _check_whole_numbers(tau: Schedule | None) -> Schedule | None:
    invalid = [number for number in (tau.bounds() if tau else ()) if number < 0 or number != int(number)]
    if invalid:
        got = ", ".join(f"{number:g}" for number in invalid)
        raise ValueError(f"tau counts steps, expected whole numbers of at least 0, got {got}; change them")
    return tau


PIECEWISE_CONSTANT: dict[str, type[Schedule]] = {"constant": Constant, "step": Step}
"""Schedules without values between the given ones."""
TauSchedule = Annotated[
    Schedule | None,
    OneOf(lambda: PIECEWISE_CONSTANT, number_type=Constant, optional=True),
    AfterValidator(_check_whole_numbers),
]


def _increase_after(*epochs: int, of: int) -> Step:
    """0 at first, and one more after each of these epochs of `of`, as fractions of a run of any length."""
    at = tuple(Time(Fraction(epoch, of), "run") for epoch in (0, *epochs))
    return Step(at=at, to=tuple(float(number) for number in range(len(at))))


VARIANT_DEFAULTS = {
    "at": (EarlyStopPgd(), _increase_after(50, 90, of=120)),
    "trades": (EarlyStopPgd(omega=0.0, loss="kl", start="gaussian"), _increase_after(30, 50, 70, of=85)),
}
"""The released attack and tau: 0, 1, 2 in epochs 1-50, 51-90, 91-120 of 120; 0, 1, 2, 3 in epochs 1-30,
31-50, 51-70, 71-85 of 85."""


@final
@frozen_config
class Fat(SingleThreatObjective):
    """Friendly adversarial training (FAT): loss = CE(f(x'), y), with x' from PGD that stops on success.

    The attack stops on an image tau steps after it is first misclassified (see `EarlyStopPgd`), and tau grows
    during the run. With variant = "trades" the attack maximises the divergence and the loss is that of
    TRADES, CE(f(x), y) + beta KL(p(x) || p(x')). Zhang et al., 2020, Attacks which do not kill training make
    adversarial learning stronger.
    """

    reference: ClassVar[str] = "Zhang et al., 2020"
    whole_batch: ClassVar[bool] = True

    threat: Threat
    variant: Literal["at", "trades"] = "at"
    """The training method that uses the early-stopped attack."""
    attack: Annotated[EarlyStopPgd | None, OneOf(lambda: {"early-stop-pgd": EarlyStopPgd}, optional=True)] = (
        None
    )
    """The attack, with tau = 0; by default the one released for the variant."""
    tau: TauSchedule = None
    """Steps after the first misclassification; by default the schedule released for the variant. Its times
    are compared with the completed part of the run: the value at 50 holds from epoch 51 on."""
    beta: NonNegativeFloat = 6.0
    """The weight of the divergence, for the variant trades."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effective_attack.tau:
            raise ValueError(
                f"the attack's tau is {self.effective_attack.tau}, expected 0, because it follows the "
                "objective's tau; set it there"
            )

    @property
    @override
    def effective_attack(self) -> EarlyStopPgd:
        return VARIANT_DEFAULTS[self.variant][0] if self.attack is None else self.attack

    def loss_passes(self) -> Passes:
        """One forward and backward; two for the variant trades."""
        return Passes(1, 1) * (2 if self.variant == "trades" else 1)

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """Times of tau that are after the end of the run, or not in ascending order."""
        times = () if self.tau is None else self.tau.knot_times()
        messages = [
            f"changes after {float(time.to_epochs(epochs)):g} epochs, expected less than the {epochs} of the "
            "run; choose an earlier time"
            for time in times
            if time.to_epochs(epochs) >= epochs
        ]
        if disorder := order_problem(pairwise(times), epochs):
            messages.append(f"{disorder}, of {epochs} epochs")
        return [("tau", message) for message in messages]

    def tau_at(self, ctx: Context) -> int:
        """The value of tau in this step."""
        schedule = VARIANT_DEFAULTS[self.variant][1] if self.tau is None else self.tau
        clock = ctx.clock
        completed = (ctx.epoch - 1) * clock.steps_per_epoch if clock.pace == "epoch" else ctx.t - 1
        return int(schedule(completed, clock))

    @override
    def attack_of_step(self, model: nn.Module, batch: Batch, ctx: Context) -> Attack:
        return replace(self.effective_attack, tau=self.tau_at(ctx))

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The variant's loss, and the mean number of steps per image."""
        assert crafted is not None and crafted.steps is not None
        if self.variant == "trades":
            loss = trades_loss(model(batch.x), model(crafted.x), batch, self.beta)
        else:
            loss = cross_entropy_loss(model(crafted.x), batch)
        return Loss(loss.total, {**loss.parts, "steps": crafted.steps.float().mean()})
