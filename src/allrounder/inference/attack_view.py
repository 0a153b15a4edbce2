"""The view of a network that an attack runs on; the network itself is restored afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from allrounder.inference import fold as folding
from allrounder.inference.fast_crafting import FAST_MODELS, crafting_copy
from allrounder.nn.amp import AutocastModule, unwrap
from allrounder.nn.modes import no_param_grads, preserve_buffers, preserve_mode
from allrounder.types import BatchNormMode, Classifier


@contextmanager
def attack_view(model: Classifier, x: Tensor, norm_layers: BatchNormMode) -> Generator[Classifier]:
    """Yield the network to craft on, without parameter gradients; restore the model on exit.

    "eval" yields a folded copy if one can be made (see fold.py and fast_crafting.py), otherwise the network
    in eval mode. "train" yields the network in training mode, so its running statistics change;
    "train_frozen" does too, but restores all buffers afterwards. A network in half precision is folded in
    float32 and runs in half precision. A function that is not an nn.Module is yielded unchanged.
    """
    if norm_layers not in get_args(BatchNormMode):
        modes = ", ".join(get_args(BatchNormMode))
        raise ValueError(f"norm_layers is {norm_layers!r}, expected one of: {modes}")
    if not isinstance(model, nn.Module):
        if norm_layers != "eval":
            raise ValueError(f"norm_layers is {norm_layers!r}, expected eval: a plain function has no modes")
        yield model
        return
    buffers = preserve_buffers(model) if norm_layers == "train_frozen" else nullcontext()
    with preserve_mode(model), no_param_grads(model), buffers:
        # Also before folding: some modules change their weights with the mode, such as merged LoRA layers.
        model.train(norm_layers != "eval")
        yield (_fold(model, x) if norm_layers == "eval" else None) or model


def _fold(model: nn.Module, x: Tensor) -> Classifier | None:
    folded = folding.folded_copy(unwrap(model), x)
    if folded is None:
        return None
    # The faster layers compute in float32 only.
    if unwrap(model) in FAST_MODELS and not torch.is_autocast_enabled(x.device.type):
        folded = crafting_copy(folded, x)
    return partial(model.forward_with, folded) if isinstance(model, AutocastModule) else folded
