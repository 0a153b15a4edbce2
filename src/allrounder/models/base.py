"""What an architecture is: a frozen value that builds a network from images in [0, 1] to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, final

from pydantic import Field
from torch import nn

from allrounder.config.fields import Number, Positive, value
from allrounder.errors import RecipeError
from allrounder.models.normalise import normaliser

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class ModelSpec(ABC):
    """A value that names a network; building it gives one with fresh weights."""

    @abstractmethod
    def build(self, classes: int, shape: Shape) -> nn.Module:
        """A network from images (n, c, h, w) in [0, 1] to logits (n, k), drawn from the global generator."""


@value
class Architecture(ModelSpec):
    """A network that this package builds, with its normalisation inside."""

    mean: Annotated[
        tuple[Number, ...], Field(description="What is subtracted from every channel; empty is nothing.")
    ] = ()
    std: Annotated[
        tuple[Positive, ...], Field(description="What every channel is divided by; empty is nothing.")
    ] = ()

    def build(self, classes: int, shape: Shape) -> nn.Module:
        """A network from images (n, c, h, w) in [0, 1] to logits (n, k), drawn from the global generator."""
        if classes < 1:
            raise ValueError(f"model: asked for {classes} classes, expected 1 or more")
        if min(shape) < 1:
            raise ValueError(
                f"model: asked for images of shape {shape}, expected (c, h, w) of 1 or more each"
            )
        return self.network(normaliser(self.mean, self.std, shape[0]), classes, shape)

    @abstractmethod
    def network(self, normalise: nn.Module, classes: int, shape: Shape) -> nn.Module:
        """The network behind its normalisation."""


@final
@value
class Given(ModelSpec):
    """A network handed over from Python, known to the recipe by name only."""

    name: str
    """The name of what makes the network."""

    def build(self, classes: int, shape: Shape) -> nn.Module:
        """Always an error: a recipe holds the name, not the network."""
        raise RecipeError(
            f'model: given from Python as "{self.name}", so the recipe does not hold it; '
            "give it again, also to resume: train(recipe, out, model=...)"
        )
