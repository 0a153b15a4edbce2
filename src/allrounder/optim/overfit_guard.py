"""A guard against catastrophic overfitting of single-step adversarial training."""

from __future__ import annotations

from typing import Annotated, final

import torch
from pydantic import Field
from torch import Tensor, nn

from allrounder.attacks.base import perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Share, frozen_config
from allrounder.nn.amp import unwrap
from allrounder.nn.modes import preserve_mode
from allrounder.nn.state import clone, copy_, strip_prefix, weights_of
from allrounder.objectives.base import AnyAttack, Objective
from allrounder.optim.base import Descend, TrainingStep, Update
from allrounder.optim.optimizers import Optimizer
from allrounder.types import Loss, NamedTensors, Passes

NO_ACCURACY = -1.0
"""Stands for the accuracy before the first epoch."""


@final
@frozen_config
class CatastrophicOverfittingGuard(Update):
    """Plain descent that stops when robust accuracy collapses from one epoch to the next.

    At the end of every epoch the probe attacks the last batch under the objective's threats, with the network
    in evaluation mode. If the mean accuracy is more than `fall` below that of the epoch before, the weights
    from the start of the epoch are restored and no more steps are taken: later calls cost nothing and report
    the last loss, with "stopped" at 1. An average of the learner's weights restarts from the restored ones.
    The learner stays in the mix: its weights keep their share, and an exchange replaces them as usual.
    Wong, Rice and Kolter, 2020, Fast is better than free: revisiting adversarial training.
    """

    # Differs: released code probes the first batch of an epoch, in training mode. ADR 0020
    probe: AnyAttack = Pgd(steps=5)
    fall: Annotated[Share, Field(gt=0)] = 0.2
    """How far accuracy may fall from one epoch to the next."""

    def memory(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights at the start of the epoch, the accuracy of the epoch before, whether training has
        stopped, whether the last step stopped it, and the last reported loss and accuracy."""
        scalars = {
            "stopped": 0.0,
            "ended": 0.0,
            "accuracy": NO_ACCURACY,
            "last.loss": 0.0,
            "last.accuracy": 0.0,
        }
        weights = {f"guard.weights.{name}": tensor for name, tensor in clone(weights_of(model)).items()}
        return {f"guard.{name}": torch.tensor(number) for name, number in scalars.items()} | weights

    def has_rolled_back(self, memory: NamedTensors) -> bool:
        """True after the step that stops the training."""
        return bool(memory["guard.ended"])

    def epoch_passes(self, objective: Objective) -> Passes:
        """The passes of the probe and one more forward, for every threat."""
        return (self.probe.passes() + Passes(1, 0)) * len(objective.threats())

    def problems(self, objective: Objective, optimizer: Optimizer, epochs: int) -> list[tuple[str, str]]:
        """An objective without threats, or a probe that does not support them."""
        if not objective.threats():
            message = "the objective trains against no threat, so there is nothing to guard; use descend"
            return [("kind", message)]
        problems: list[tuple[str, str]] = []
        for threat in objective.threats():
            try:
                self.probe.check_supports(threat)
            except ValueError as error:
                problems.append(("probe", str(error)))
        return problems

    def apply(self, step: TrainingStep) -> Loss:
        """Take one step, and probe at the end of an epoch; no-op once stopped."""
        state = strip_prefix("guard.", step.ctx.memory)
        if bool(state["stopped"]):
            state["ended"].zero_()
            parts = {"accuracy": state["last.accuracy"].clone(), "stopped": state["stopped"].clone()}
            return Loss(state["last.loss"].clone(), parts)
        weights = weights_of(unwrap(step.model))
        epoch_start = strip_prefix("weights.", state)
        if step.starts_epoch:  # after an exchange at the end of the epoch before
            copy_(epoch_start, weights)
        loss = Descend().apply(step)
        if step.ctx.ends_epoch:
            state["last.loss"].copy_(loss.total.detach())
            state["last.accuracy"].copy_(loss.parts["accuracy"])
            accuracy = self._probe_accuracy(step)
            if float(accuracy) < float(state["accuracy"]) - self.fall:
                state["stopped"].fill_(1)
                state["ended"].fill_(1)
                copy_(weights, epoch_start)
            else:
                state["accuracy"].copy_(accuracy)
        return Loss(loss.total, {**loss.parts, "stopped": state["stopped"].clone()})

    def _probe_accuracy(self, step: TrainingStep) -> Tensor:
        """The accuracy on the batch under the probe, averaged over threats."""
        model, batch = step.model, step.batch
        accuracies: list[Tensor] = []
        for number, threat in enumerate(step.objective.threats()):
            rng = step.ctx.rng.fold_in("guard", number)
            x_adv = perturb(self.probe, model, batch.x, batch.y, threat, rng).x
            with preserve_mode(model), torch.no_grad():
                accuracies.append((model.eval()(x_adv).argmax(1) == batch.y).float().mean())
        return torch.stack(accuracies).mean()
