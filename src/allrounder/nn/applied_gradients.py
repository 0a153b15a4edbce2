"""The gradients that an optimiser applies, for code that runs after they are freed."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from allrounder.types import Weights


@final
class AppliedGradients:
    """Keeps the gradients of an optimiser's last step.

    They are those that the step uses: edited, taken at perturbed weights, or averaged over ranks, if the
    update does that. Gradients of other backward passes are not seen.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The optimiser changes parameters of `model`."""
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.last: Weights = {}
        optimizer.register_step_pre_hook(self._keep)

    def pop(self) -> Weights:
        """Return the gradients of the last step by parameter name, and forget them; empty if there was no
        step since the last call."""
        last, self.last = self.last, {}
        return last

    def _keep(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        # Copies, because some steps write to gradients, such as those of Nesterov momentum on CUDA.
        self.last = {self.names[p]: p.grad.detach().clone() for p in parameters if p.grad is not None}
