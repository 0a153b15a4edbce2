"""The interface of a model: a frozen value that builds a network from images in [0, 1] to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, final

from pydantic import Field
from torch import nn
from typing_extensions import override

from allrounder.config.fields import FiniteFloat, PositiveFloat, frozen_config
from allrounder.errors import RecipeError
from allrounder.models.layers import build_normalise

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class ModelSpec(ABC):
    """A frozen value that describes a network and builds it with newly initialised weights."""

    @abstractmethod
    def build(self, classes: int, shape: Shape) -> nn.Module:
        """Build a network from images in [0, 1] to logits (n, k), initialised by the global generator."""

    @property
    def num_networks(self) -> int:
        """The number of networks that a prediction needs: one, except for ensembles."""
        return 1


@frozen_config
class Architecture(ModelSpec):
    """A network of this package; it normalises its images itself."""

    network: ClassVar[type[nn.Module]]
    """The class of the network. Its first argument is the layer that normalises images, its first layer."""

    mean: Annotated[
        tuple[FiniteFloat, ...],
        Field(description="Mean per channel that is subtracted from images; empty for none."),
    ] = ()
    std: Annotated[
        tuple[PositiveFloat, ...],
        Field(description="Deviation per channel that images are divided by; empty for none."),
    ] = ()

    @override
    def build(self, classes: int, shape: Shape) -> nn.Module:
        if classes < 1:
            raise ValueError(f"model: got {classes} classes, expected 1 or more")
        if min(shape) < 1:
            raise ValueError(f"model: got images of shape {shape}, expected (c, h, w) of 1 or more each")
        normalise = build_normalise(self.mean, self.std, shape[0])
        return self.network(normalise, **self.arguments(classes, shape))

    @abstractmethod
    def arguments(self, classes: int, shape: Shape) -> dict[str, Any]:
        """The other arguments of `network`, by name: plain values, which an export writes as text."""


@final
@frozen_config
class CustomModel(ModelSpec):
    """A network passed from Python; the recipe knows only its name."""

    name: str
    """Name of the function or class that builds the network."""

    def build(self, classes: int, shape: Shape) -> nn.Module:
        """Raise RecipeError: a recipe holds only the name of the network."""
        raise RecipeError(
            f'model: given from Python as "{self.name}", and the recipe holds only its name; '
            "pass it again: load(run, model=...), or train(recipe, out, model=..., resume=True) to continue"
        )
