"""Batch-norm statistics measured on natural or adversarial training images: those of global weights, as
`mix.buffers` of a recipe asks for, and those of mixtures after training."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from allrounder.attacks.base import Attack, perturb
from allrounder.data.base import Split
from allrounder.nn.amp import full_precision
from allrounder.nn.batchnorm import recalibrate_, tracks_statistics
from allrounder.nn.state import clone, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.mixer import NUM_IMAGES, recalibrate, sample_rows
from allrounder.types import Weights, device_and_dtype

Statistics: TypeAlias = Literal["natural", "adversarial", "both"]
"""The images that batch-norm statistics are measured on; both: one half of every batch is adversarial."""
BUFFERS: dict[str, Statistics] = {
    "recalibrate": "natural",
    "recalibrate-adversarial": "adversarial",
    "recalibrate-both": "both",
}
"""By the values of `mix.buffers` that measure statistics."""


@final
@dataclass(frozen=True)
class Crafting:
    """Which training images batch-norm statistics are measured on, and how they are attacked."""

    attack: Attack
    threats: tuple[Threat, ...]
    """The attacked images of a batch take turns among them."""
    seed: int
    batch_size: int


def set_statistics(
    theta: Weights,
    network: nn.Module,
    recipe: Recipe,
    split: Split,
    heartbeat: Callable[[], None] = lambda: None,
) -> Weights:
    """Return global weights with the batch-norm statistics that a recipe asks for: as they are, or measured
    on images of a split, which the validation attack attacks. The weights of `network` are overwritten.
    `heartbeat` is called for every batch."""
    buffers = recipe.effective_mix.buffers
    if buffers == "average":
        return theta
    attack, threats = recipe.validation.attack, recipe.selection_threats
    crafting = Crafting(attack, threats, recipe.seed, recipe.batch_size)
    return measure_statistics(theta, network, split, BUFFERS[buffers], crafting, heartbeat)


def measure_statistics(
    theta: Weights,
    network: nn.Module,
    split: Split,
    statistics: Statistics,
    crafting: Crafting,
    heartbeat: Callable[[], None] = lambda: None,
) -> Weights:
    """Return weights with batch-norm statistics of images of a split. The weights of `network` are
    overwritten. `heartbeat` is called for every batch.

    Adversarial images are crafted before any statistics of them are measured, on the network with statistics
    of natural images.
    """
    natural = recalibrate(theta, network, split, crafting.seed, crafting.batch_size, heartbeat=heartbeat)
    if statistics == "natural" or not tracks_statistics(network):
        return natural
    device, dtype = device_and_dtype(network)
    period = 2 if statistics == "both" else 1
    batches = list(craft_batches(network, split, crafting, period, heartbeat))
    recalibrate_(network, (x.to(device, dtype) for x in batches))
    return clone(weights_of(network))


def craft_batches(
    network: nn.Module, split: Split, crafting: Crafting, period: int, heartbeat: Callable[[], None]
) -> Generator[Tensor]:
    """Yield the batches that natural statistics are measured on, with the last of every `period` images
    attacked."""
    device, dtype = device_and_dtype(network)
    attack, threats = crafting.attack, crafting.threats
    natural = Rng(crafting.seed).fold_in("recalibrate")
    for number, rows in enumerate(sample_rows(split, NUM_IMAGES, natural, crafting.batch_size)):
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)
        x_adv = x.clone()
        for k, threat in enumerate(threats):
            heartbeat()
            chosen = slice(period - 1 + k * period, None, len(threats) * period)
            rng = Rng(crafting.seed).fold_in("recalibrate", number, str(threat))
            with torch.no_grad(), full_precision(device):
                x_adv[chosen] = perturb(attack, network, x[chosen], y[chosen], threat, rng).x
        yield x_adv.cpu()
