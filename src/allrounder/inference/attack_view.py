"""Lending a network to an attack, and taking it back as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import get_args

from torch import Tensor, nn

from allrounder.inference import fold as folding
from allrounder.inference.compiling import compiled
from allrounder.nn.amp import Cast, bare
from allrounder.nn.modes import buffers_restored, gradients_off, modes_restored
from allrounder.recipe.compute import COMPILED
from allrounder.types import Classifier, NormLayers


@contextmanager
def lend(model: Classifier, x: Tensor, norm_layers: NormLayers) -> Generator[Classifier]:
    """The network to craft on, without parameter gradients; put back as it was when the attack ends or fails.

    eval lends a folded copy where one can be made (see `folding`), else the network in eval mode. train lends
    it in training mode, so its running statistics move; train_frozen does too, and restores every buffer
    after. A network in half precision is folded in float32, and lent in half. Where it is asked for, the
    folded copy is compiled (see `compiling`). A function that is no nn.Module is lent as it is.
    """
    if norm_layers not in get_args(NormLayers):
        known = ", ".join(get_args(NormLayers))
        raise ValueError(f"norm_layers is {norm_layers!r}, expected one of: {known}")
    if not isinstance(model, nn.Module):
        if norm_layers != "eval":
            raise ValueError(f"norm_layers is {norm_layers!r}, expected eval: a plain function has no modes")
        yield model
        return
    frozen = buffers_restored(model) if norm_layers == "train_frozen" else nullcontext()
    with modes_restored(model), gradients_off(model), frozen:
        model.train(norm_layers != "eval")
        yield (_folded(model, x) if norm_layers == "eval" else None) or model


def _folded(model: nn.Module, x: Tensor) -> Classifier | None:
    folded = folding.frozen(bare(model), x)
    if folded is None:
        return None
    dtype, images = model.dtype if isinstance(model, Cast) else None, COMPILED.get()
    run = folded if images != len(x) else compiled(folded, x, dtype)
    return partial(model.through, run) if isinstance(model, Cast) else run
