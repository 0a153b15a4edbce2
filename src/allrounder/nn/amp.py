"""A network that computes in half precision, between images, logits and gradients in float32.

Autocast holds for one forward pass, not for a step. So losses, projections and steps around the network keep
float32, and no cast weights outlive the pass: torch remembers them until autocast ends, and an update that
moves weights inside a step would go on with old ones.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call  # pyright: ignore[reportPrivateImportUsage]

from allrounder.errors import Diverged, RecipeError
from allrounder.recipe.compute import DTYPES, Compute
from allrounder.types import Classifier, device_of

LARGEST, CALM = 2.0**16, 2000
"""The loss scale that is begun with and never exceeded, and after how many good steps it is doubled."""
MARGIN = 16
"""How much further from overflow gradients of images are kept than those of weights."""


@final
class Cast(nn.Module):
    """A network under autocast; with float16 also with a loss scale."""

    def __init__(self, network: nn.Module, dtype: torch.dtype):
        super().__init__()
        if (held := device_of(network)[1]) != torch.float32:
            raise RecipeError(
                f"compute.precision: the network is in {held}, expected torch.float32, the only type that is "
                "cast; convert it, or set compute.precision to fp32"
            )
        self.network, self.dtype = network, dtype
        self.scale = LossScale() if dtype == torch.float16 else None

    def forward(self, x: Tensor) -> Tensor:
        """Images to float32 logits."""
        return self.through(self.network, x)

    def through(self, network: Classifier, x: Tensor) -> Tensor:
        """The same by another form of the network, such as a folded copy.

        With a loss scale s, gradients inside are s times as large, and outside what they are: they grow where
        they enter, at the logits, and shrink where they leave, at images and weights.
        """
        training = [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]
        s = 1.0 if self.scale is None else self.scale.now(len(x), weights=bool(training))
        run = network
        if s != 1 and isinstance(network, nn.Module) and training:
            shrunk = {name: _amplified(p, 1 / s) for name, p in training}
            run = cast(Classifier, partial(functional_call, network, shrunk))
        with torch.autocast(x.device.type, dtype=self.dtype):
            logits = run(_amplified(x, 1 / s))
        return _amplified(logits.float(), s)


@final
class LossScale:
    """A power of two by which gradients are kept out of float16's zeros: halved, and the step left out, when
    one overflows; doubled after CALM steps without.

    Micikevicius et al., 2018, Mixed precision training. Differs from torch's own in where it acts: at the
    network and before the optimiser, so that objectives and updates need not know of it.
    """

    def __init__(self) -> None:
        self.memory = {"precision.scale": torch.tensor(LARGEST), "precision.calm": torch.tensor(0)}

    def now(self, images: int, *, weights: bool) -> float:
        """The scale of a pass: for weights, whose loss is a mean over images, or for images, whose loss is a
        sum and thus has larger gradients."""
        scale = float(self.memory["precision.scale"])
        return scale if weights else max(1.0, 2.0 ** math.floor(math.log2(scale / (MARGIN * images))))

    def guard(self, optimizer: torch.optim.Optimizer, *ignored: Any) -> None:
        """Before the optimiser moves: where a gradient is not finite, take all away, so that it does not."""
        moved = [p for group in optimizer.param_groups for p in cast(list[Tensor], group["params"])]
        scale, calm = self.memory["precision.scale"], self.memory["precision.calm"]
        if all(bool(p.grad.isfinite().all()) for p in moved if p.grad is not None):
            calm += 1
            if int(calm) == CALM:
                scale.mul_(2).clamp_(max=LARGEST)
                calm.zero_()
            return
        if float(scale) <= 1:
            raise Diverged("gradients overflow float16 even unscaled; set compute.precision to bf16 or fp32")
        scale.div_(2)
        calm.zero_()
        for p in moved:
            p.grad = None


def in_precision(model: nn.Module, compute: Compute) -> nn.Module:
    """The network that steps are taken with: itself, or behind its casts."""
    return model if compute.precision == "fp32" else Cast(model, DTYPES[compute.precision])


def guarded(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Let a loss scale watch over an optimiser, if there is one; what it remembers from step to step."""
    if not isinstance(network, Cast) or network.scale is None:
        return {}
    optimizer.register_step_pre_hook(network.scale.guard)
    return network.scale.memory


def bare(model: nn.Module) -> nn.Module:
    """The network itself, by whose names its tensors are saved, also where casts stand before it."""
    return model.network if isinstance(model, Cast) else model


def guard_(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a loss scale does before an optimiser moves, for a step that is taken without the optimiser."""
    if isinstance(model, Cast) and model.scale is not None:
        model.scale.guard(optimizer)


def _amplified(t: Tensor, factor: float) -> Tensor:
    """The same numbers, with a gradient that is so many times as large."""
    if factor == 1 or not t.requires_grad:
        return t
    same = t.view_as(t)

    def grow(g: Tensor) -> Tensor:
        return g * factor

    same.register_hook(grow)
    return same
