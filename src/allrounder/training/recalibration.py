"""Batch-norm statistics of global weights, measured as `mix.buffers` of a recipe asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
from torch import Tensor, nn

from allrounder.attacks.base import perturb
from allrounder.data.base import Split
from allrounder.nn.amp import full_precision
from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.state import clone, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.mixer import NUM_IMAGES, recalibrate, sample_rows
from allrounder.types import Weights, device_and_dtype


def set_statistics(
    theta: Weights,
    network: nn.Module,
    recipe: Recipe,
    split: Split,
    heartbeat: Callable[[], None] = lambda: None,
) -> Weights:
    """Return global weights with the batch-norm statistics that a recipe asks for: as they are, or measured
    on images of a split. The weights of `network` are overwritten. `heartbeat` is called for every batch.

    Adversarial images are crafted before any statistics of them are measured, by the validation attack on the
    network with statistics of natural images.
    """
    buffers = recipe.effective_mix.buffers
    if buffers == "average":
        return theta
    natural = recalibrate(theta, network, split, recipe.seed, recipe.batch_size, heartbeat=heartbeat)
    if buffers == "recalibrate":
        return natural
    device, dtype = device_and_dtype(network)
    period = 2 if buffers == "recalibrate-both" else 1
    batches = list(craft_batches(network, recipe, split, period, heartbeat))
    recalibrate_(network, (x.to(device, dtype) for x in batches))
    return clone(weights_of(network))


def craft_batches(
    network: nn.Module, recipe: Recipe, split: Split, period: int, heartbeat: Callable[[], None]
) -> Generator[Tensor]:
    """Yield the batches that natural statistics are measured on, with the last of every `period` images
    attacked. The attacked images of a batch take turns among the threats of the recipe."""
    device, dtype = device_and_dtype(network)
    threats = recipe.selection_threats
    natural = Rng(recipe.seed).fold_in("recalibrate")
    for number, rows in enumerate(sample_rows(split, NUM_IMAGES, natural, recipe.batch_size)):
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)
        x_adv = x.clone()
        for k, threat in enumerate(threats):
            heartbeat()
            chosen = slice(period - 1 + k * period, None, len(threats) * period)
            rng = Rng(recipe.seed).fold_in("recalibrate", number, str(threat))
            with torch.no_grad(), full_precision(device):
                x_adv[chosen] = perturb(
                    recipe.validation.attack, network, x[chosen], y[chosen], threat, rng
                ).x
        yield x_adv.cpu()
