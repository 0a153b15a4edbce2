"""A folded network with quicker layers, for searches that pass through it many thousand times on a CPU."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from allrounder.inference import stem, winograd
from allrounder.inference.fold import Folded
from allrounder.rng import Draws
from allrounder.types import Images

LOG = logging.getLogger("allrounder")
TINY = 1e-30
TOLERANCES = (1e-3, 2e-2)
"""How far answers and gradients may differ, by their lengths. A ReLU that rounding turns on changes the
gradient more than the answer."""
QUICK: tuple[tuple[Callable[[nn.Conv2d], bool], Callable[[nn.Conv2d], nn.Module]], ...] = (
    (winograd.suits, winograd.Winograd),
    (stem.suits, stem.Stem),
)
"""Which convolutions have a quicker form, and what it is."""


def quickened(folded: Folded, like: Images) -> Folded:
    """A copy of a folded network with the quicker forms of its layers; itself where none has one.

    Answers and gradients are about the same for some images of this shape, or the copy is not used. They are
    the same ones always, so that this does not depend on what is evaluated.
    """
    network = copy.deepcopy(folded.network)
    if not _replace(network):
        return folded
    quick = Folded(network, folded.pairs)
    x = Draws(0).at("quick").uniform(like)
    for one, other, most in zip(_answers(folded, x), _answers(quick, x), TOLERANCES, strict=True):
        gap = math.sqrt(float((one - other).square().sum()) / max(float(one.square().sum()), TINY))
        if not gap <= most:
            LOG.info("attacks use plain convolutions: with quick ones answers differ by %.1e relatively", gap)
            return folded
    return quick


def _replace(network: nn.Module) -> int:
    """Put quicker layers into a network; how many."""
    layers, count = cast(Iterable[tuple[str, nn.Module]], network.named_modules()), 0
    for name, layer in list(layers):
        for suits, form in QUICK:
            if isinstance(layer, nn.Conv2d) and suits(layer):
                parent, _, leaf = name.rpartition(".")
                setattr(network.get_submodule(parent), leaf, form(layer))
                count += 1
                break
    return count


def _answers(network: Folded, x: Images) -> tuple[Tensor, Tensor]:
    asked = x.clone().requires_grad_()
    with torch.enable_grad():
        logits = network(asked)
        (slope,) = torch.autograd.grad(logits.square().sum(), asked)
    return logits.detach(), slope
