"""An ensemble of an accurate and a robust network whose outputs are mixed, after MixedNUTS.

    log((1 - alpha) softmax(natural logits) + alpha softmax(h(robust logits)))
    h(z) = scale * max(LN(z) + shift, 0) ** power

LN normalises the logits of an image to mean 0 and variance 1. Robust networks are more confident where they
are right than where an attack fools them; h widens that difference, so that the natural network decides where
the robust one is unsure. Bai, Zhou, Patel and Sojoudi, 2024, MixedNUTS: training-free accuracy-robustness
balance via nonlinearly mixed classifiers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, final

import torch
from pydantic import Field
from torch import nn
from typing_extensions import override

from allrounder.config.fields import FiniteFloat, OneOf, PositiveFloat, Share, frozen_config
from allrounder.models.base import ModelSpec, Shape
from allrounder.models.layers import TensorOrProxy

EPSILON = 1e-5
"""Added to the variance of logits, as in layer normalisation."""


def _models() -> Mapping[str, type[ModelSpec]]:
    # Imported on first use, because the table contains the model of this file.
    from allrounder.models import MODELS

    return MODELS


@final
@frozen_config
class OutputMix:
    """How the outputs of an accurate and a robust network are mixed."""

    alpha: Share
    """The weight of the robust network."""
    scale: PositiveFloat = 1.0
    power: Annotated[PositiveFloat, Field(ge=1)] = 1.0
    """At least 1: below, gradients are infinite where the transform is 0."""
    shift: FiniteFloat = 0.0

    def transform(self, logits: TensorOrProxy) -> TensorOrProxy:
        """Return h(logits), with the confidence of the robust network changed."""
        centred = logits - logits.mean(dim=1, keepdim=True)
        deviation = (centred.square().mean(dim=1, keepdim=True) + EPSILON).sqrt()
        return self.scale * (centred / deviation + self.shift).clamp(min=0) ** self.power

    def __call__(self, natural: TensorOrProxy, robust: TensorOrProxy) -> TensorOrProxy:
        """Return the logarithms of the mixed probabilities."""
        log_natural = natural.log_softmax(dim=1) + _log(1 - self.alpha)
        log_robust = self.transform(robust).log_softmax(dim=1) + _log(self.alpha)
        return torch.logaddexp(log_natural, log_robust)


@final
class Ensemble(nn.Module):
    """Two networks from images in [0, 1] to one set of log-probabilities; a prediction costs that of both.

    Its parameters are frozen. It is differentiable with respect to the images, through both networks, so
    attacks see it as one network. `allrounder.fit_ensemble` chooses the mix.
    """

    def __init__(self, natural: nn.Module, robust: nn.Module, mix: OutputMix):
        super().__init__()
        self.natural = natural
        self.robust = robust
        self.mix = mix
        self.requires_grad_(False)
        self.eval()

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        """Return log-probabilities (n, k)."""
        return self.mix(self.natural(x), self.robust(x))

    @override
    def extra_repr(self) -> str:
        return str(self.mix)


@final
@frozen_config
class EnsembleModel(ModelSpec):
    """Two networks whose outputs are mixed, as `allrounder dial --outputs` saves them; cannot be trained."""

    natural: Annotated[ModelSpec, OneOf(_models)]
    """The accurate network."""
    robust: Annotated[ModelSpec, OneOf(_models)]
    """The robust network."""
    mix: OutputMix
    """How their outputs are mixed."""

    @property
    @override
    def num_networks(self) -> int:
        return self.natural.num_networks + self.robust.num_networks

    @override
    def build(self, classes: int, shape: Shape) -> nn.Module:
        return Ensemble(self.natural.build(classes, shape), self.robust.build(classes, shape), self.mix)


def _log(weight: float) -> float:
    return math.log(weight) if weight > 0 else -math.inf
