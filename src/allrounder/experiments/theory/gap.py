"""The mixing gap of Generalist++, Eq. 36: the network of mixed weights against the mixture of networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.nn.drift import measure_drift
from allrounder.nn.state import average_weights, copy_, distance, weights_of
from allrounder.types import Images, Labels, Logits, NamedTensors, Weights

INTERVALS = 8
"""Intervals of a segment of weights, on which differences estimate derivatives."""
LOSS_SLOPE = math.sqrt(2)
"""L of Theorem 2 for the cross-entropy as a function of logits: its gradient p - e_y is never longer."""
LOSS_CURVATURE = 0.5
"""The largest eigenvalue that the Hessian diag(p) - p p^T of the cross-entropy can have."""
BATCH_SIZE = 256


@final
@dataclass(frozen=True)
class MixingGap:
    """The gap on some images, and the constants of Theorem 2 as far as these images and the segments from the
    mixture to the learners show them: estimates from below."""

    mean: float
    """The mean over images of ||f_theta_bar(x) - sum_a gamma_a f_theta_a(x)||, where theta_bar is the mixture
    sum_a gamma_a theta_a, which the paper calls theta_g."""
    largest: float
    global_mean: float
    """The same for the global weights of the run, a moving average of mixtures, which no bound covers."""
    global_largest: float
    drift: float
    """sum_a gamma_a ||theta_a - theta_bar||^2 over all weights that are mixed, also batch-norm statistics."""
    parameter_drift: float
    """The part of the parameters, which exchanges log."""
    curvature: float
    """M: the largest second difference of the logits along the segments."""
    slope: float
    """K: the largest first difference of the logits along the segments."""
    loss_slope: float
    """The largest ||p - e_y|| of the learners and the mixture; the true L is at most LOSS_SLOPE."""
    spread: float
    """The largest sum_a gamma_a ||f_theta_a(x) - F(x)||^2 around the mixture of logits F."""

    @property
    def bound(self) -> float:
        """M drift, the bound of Eq. 36."""
        return self.curvature * self.drift

    @property
    def constant(self) -> float:
        """C = 2 L M of Theorem 2, with the true L."""
        return 2 * LOSS_SLOPE * self.curvature

    @property
    def corrected_constant(self) -> float:
        """C + K^2 / 4, with which Theorem 2 survives the failure of Lemma 1."""
        return self.constant + LOSS_CURVATURE / 2 * self.slope**2


def measure_gap(
    network: nn.Module,
    learners: Mapping[str, NamedTensors],
    shares: Mapping[str, float],
    theta_g: NamedTensors,
    x: Images,
    y: Labels,
) -> MixingGap:
    """Measure the mixing gap on images, in evaluation mode; the network is not changed."""
    scratch = deepcopy(network).eval()
    mixed = {name: weights for name, weights in learners.items() if shares[name] > 0}
    gammas = [shares[name] for name in mixed]
    mixture = average_weights(mixed.values(), gammas)
    outputs = {name: compute_logits(scratch, weights, x) for name, weights in mixed.items()}
    mean_output = torch.stack([share * outputs[name] for name, share in zip(mixed, gammas, strict=True)]).sum(
        0
    )
    mixture_output = compute_logits(scratch, mixture, x)
    gap = _norms(mixture_output - mean_output)
    global_gap = _norms(compute_logits(scratch, theta_g, x) - mean_output)
    segments = [_differences(scratch, mixture, weights, x) for weights in mixed.values()]
    spread = sum(shares[name] * _norms(outputs[name] - mean_output) ** 2 for name in mixed)
    parameters = {name: mixture[name] for name, _ in network.named_parameters()}
    floats = {name: _only_floats(weights) for name, weights in mixed.items()}
    loss_slopes = [_norms(_loss_gradient(z, y)).max() for z in (mixture_output, *outputs.values())]
    return MixingGap(
        mean=float(gap.mean()),
        largest=float(gap.max()),
        global_mean=float(global_gap.mean()),
        global_largest=float(global_gap.max()),
        drift=measure_drift(floats.items(), shares, mixture).drift,
        parameter_drift=measure_drift(floats.items(), shares, parameters).drift,
        curvature=max(second for _, second in segments),
        slope=max(first for first, _ in segments),
        loss_slope=max(float(slope) for slope in loss_slopes),
        spread=float(torch.as_tensor(spread).max()),
    )


@torch.no_grad()
def compute_logits(network: nn.Module, weights: NamedTensors, x: Images) -> Logits:
    """Return the logits of a network with these weights, which it keeps; its mode is not changed."""
    copy_(weights_of(network), weights)
    return torch.cat([network(part) for part in torch.split(x, BATCH_SIZE)])


def _differences(network: nn.Module, start: Weights, end: NamedTensors, x: Images) -> tuple[float, float]:
    """Return the largest norms of first and second differences of the logits along a segment, over images,
    per unit of length of the weights."""
    length = distance(start, end)
    if length == 0:
        return 0.0, 0.0
    points = [number / INTERVALS for number in range(INTERVALS + 1)]
    path = torch.stack([compute_logits(network, _interpolate(start, end, s), x) for s in points])
    step = length / INTERVALS
    first = path.diff(dim=0)
    return float(_norms(first).max()) / step, float(_norms(first.diff(dim=0)).max()) / step**2


def _interpolate(start: Weights, end: NamedTensors, s: float) -> Weights:
    return {
        name: torch.lerp(tensor, end[name].to(tensor), s) if tensor.is_floating_point() else tensor
        for name, tensor in start.items()
    }


def _only_floats(weights: NamedTensors) -> Weights:
    return {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}


def _loss_gradient(logits: Logits, y: Labels) -> Logits:
    """Return the gradient of the cross-entropy with respect to the logits: p - e_y."""
    return logits.softmax(1) - F.one_hot(y, logits.shape[1])


def _norms(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1).sqrt()
