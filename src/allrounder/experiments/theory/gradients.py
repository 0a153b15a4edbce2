"""Inner products of gradients of different mini-batches, which Appendix A of Generalist++ says to grow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from allrounder.config.time import Clock
from allrounder.data.base import Split
from allrounder.nn.state import copy_, weights_of
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.types import Batch, Context, NamedTensors, device_and_dtype

NUM_BATCHES = 16


@final
@dataclass(frozen=True)
class GradientProducts:
    """Means over all pairs of different mini-batches, with standard errors over the mini-batches."""

    inner: float
    """Of <g_i, g_j>; it falls with the length of the gradients, so also see the cosine."""
    inner_error: float
    cosine: float
    """Of <g_i, g_j> / (||g_i|| ||g_j||)."""
    cosine_error: float
    norm: float
    """The mean length of a gradient."""


def compare_gradients(grads: Sequence[Tensor]) -> GradientProducts:
    """Return the means over all pairs of two or more gradients, none of which is zero."""
    stacked = torch.stack([grad.double() for grad in grads])
    products = stacked @ stacked.T
    norms = products.diagonal().sqrt()
    inner, cosine = _mean_over_pairs(products), _mean_over_pairs(products / norms.outer(norms))
    return GradientProducts(*inner, *cosine, float(norms.mean()))


def _mean_over_pairs(products: Tensor) -> tuple[float, float]:
    """Return the mean of all entries beside the diagonal, and its jackknife error: the pairs of a mini-batch
    are not independent, so whole mini-batches are left out."""
    count = len(products)
    others = products.sum(1) - products.diagonal()
    total = others.sum()
    mean = total / (count * (count - 1))
    if count < 3:
        return float(mean), math.nan
    without = (total - 2 * others) / ((count - 1) * (count - 2))
    return float(mean), float(((count - 1) / count * (without - without.mean()).square().sum()).sqrt())


def batch_gradients(
    network: nn.Module,
    weights: NamedTensors,
    task: Task,
    batches: Sequence[Batch],
    clock: Clock,
    rng: Rng,
    teachers: Mapping[str, nn.Module] | None = None,
) -> list[Tensor]:
    """Return the gradient of a task's loss on every mini-batch at these weights, as vectors: crafted and in
    training mode as in the last step of a training. The network is not changed. `teachers` are those that the
    objective names."""
    scratch = deepcopy(network)
    parameters = list(scratch.parameters())
    grads: list[Tensor] = []
    for number, batch in enumerate(batches):
        copy_(weights_of(scratch), weights)  # crafting and losses change batch-norm statistics
        stream, memory = rng.fold_in("theory", number), task.objective.memory()
        ctx = Context(clock.total_steps, clock, stream, memory, teachers or {})
        with ctx.rng.fold_in("ambient").seed_global():
            crafted = task.objective.craft(scratch, batch, ctx)
            scratch.train()
            loss = task.objective.loss(scratch, batch, crafted, ctx)
        found = torch.autograd.grad(loss.total, parameters, materialize_grads=True, allow_unused=True)
        grads.append(torch.cat([grad.reshape(-1) for grad in found]))
    return grads


def draw_batches(split: Split, task: Task, batch_size: int, network: nn.Module, rng: Rng) -> list[Batch]:
    """Draw disjoint mini-batches of a split without augmentation, the same for every task."""
    rows = rng.fold_in("theory").permutation(len(split))
    size = min(batch_size, len(split) // NUM_BATCHES)
    batches: list[Batch] = []
    for index in torch.split(rows[: size * NUM_BATCHES], size):
        batch = Batch(split.fetch(index), split.labels[index], index, task.label_smoothing)
        batches.append(batch.to(*device_and_dtype(network)))
    return batches
