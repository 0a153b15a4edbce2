"""A guard against catastrophic overfitting of single-step adversarial training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, final

import torch
from pydantic import Field
from torch import Tensor, nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, Share, value
from allrounder.nn.amp import bare
from allrounder.nn.modes import modes_restored
from allrounder.nn.state import copy_, snapshot, under, weights_of
from allrounder.objectives.base import Objective
from allrounder.optim.base import Descend, Update
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Batch, Context, Loss, Passes

NEVER = -1.0
"""The accuracy of the epoch before the first."""


@final
@value
class Guarded(Update):
    """Plain descent that ends where robust accuracy collapses from one epoch to the next.

    At the end of every epoch the probe attacks its last batch, under the objective's threats, with the
    network in evaluation mode. Where the mean accuracy is more than `fall` below that of the epoch before,
    the weights that the epoch began with come back and no more steps are taken: they cost nothing, and report
    the last loss, with "stopped" at 1. An average of the learner's weights starts anew from those that come
    back. The learner stays a learner: in a mix its weights keep their share, and an exchange replaces them
    like all others'.
    Wong, Rice and Kolter, 2020, Fast is better than free: revisiting adversarial training.
    """

    # Differs: released code probes the first batch of an epoch, in training mode. ADR 0020
    probe: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=5)
    fall: Annotated[Share, Field(gt=0)] = 0.2
    """How far accuracy may fall from one epoch to the next."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """The epoch's first weights, the accuracy of the one before, whether it is over and whether the last
        step ended it, and what was last reported."""
        numbers = {"stopped": 0.0, "ended": 0.0, "accuracy": NEVER, "last.loss": 0.0, "last.accuracy": 0.0}
        kept = {f"guard.weights.{name}": tensor for name, tensor in snapshot(weights_of(model)).items()}
        return {f"guard.{name}": torch.tensor(number) for name, number in numbers.items()} | kept

    def restarted(self, memory: Mapping[str, Tensor]) -> bool:
        """In the step that ends it."""
        return bool(memory["guard.ended"])

    def epoch_passes(self, objective: Objective) -> Passes:
        """The probe's, and a forward pass more, for every threat."""
        return (self.probe.passes() + Passes(1, 0)) * len(objective.threats())

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """Nothing to probe, or a probe that cannot."""
        if not objective.threats():
            said = "the objective trains against no threat, so there is nothing to guard; use descend"
            return [("kind", said)]
        found: list[tuple[str, str]] = []
        for threat in objective.threats():
            try:
                self.probe.check_supports(threat)
            except ValueError as error:
                found.append(("probe", str(error)))
        return found

    def apply(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batch: Batch,
        ctx: Context,
        reduce_: Callable[[nn.Module], None],
    ) -> Loss:
        """One step, and a look at the end of an epoch; or none."""
        held = under("guard.", ctx.memory)
        if bool(held["stopped"]):
            held["ended"].zero_()
            parts = {"accuracy": held["last.accuracy"].clone(), "stopped": held["stopped"].clone()}
            return Loss(held["last.loss"].clone(), parts)
        live, kept = weights_of(bare(model)), under("weights.", held)
        if (ctx.t - 1) % ctx.clock.steps == 0:  # after an exchange at the end of the epoch before
            copy_(kept, live)
        loss = Descend().apply(model, optimizer, objective, batch, ctx, reduce_)
        if ctx.epoch_done:
            held["last.loss"].copy_(loss.total.detach())
            held["last.accuracy"].copy_(loss.parts["accuracy"])
            found = agreed(self._accuracy(model, objective, batch, ctx), reduce_)
            if float(found) < float(held["accuracy"]) - self.fall:
                held["stopped"].fill_(1)
                held["ended"].fill_(1)
                copy_(live, kept)
            else:
                held["accuracy"].copy_(found)
        return Loss(loss.total, {**loss.parts, "stopped": held["stopped"].clone()})

    def _accuracy(self, model: nn.Module, objective: Objective, batch: Batch, ctx: Context) -> Tensor:
        """Of the probe on a batch, as a mean over threats."""
        found: list[Tensor] = []
        for number, threat in enumerate(objective.threats()):
            draws = ctx.draws.at("guard", number)
            x_adv = perturb(self.probe, model, batch.x, batch.y, threat, draws).x
            with modes_restored(model), torch.no_grad():
                found.append((model.eval()(x_adv).argmax(1) == batch.y).float().mean())
        return torch.stack(found).mean()


def agreed(number: Tensor, reduce_: Callable[[nn.Module], None]) -> Tensor:
    """The mean of a number over all who share a learner, who thus stop together; `reduce_` averages
    gradients."""
    ballot = nn.Module()
    ballot.register_parameter("number", nn.Parameter(number.clone()))
    (parameter,) = ballot.parameters()
    parameter.grad = number.clone()
    reduce_(ballot)
    return parameter.grad
