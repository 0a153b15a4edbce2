"""Networks of other libraries as networks from images in [0, 1] to logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from allrounder.errors import InputError
from allrounder.models.layers import Normalise
from allrounder.models.normalisation import check_mean_std

Numbers: TypeAlias = float | Sequence[float] | np.generic | NDArray[Any] | Tensor
"""One number for all channels, or one per channel."""
LOGITS = "logits"
"""The attribute or key with the logits, in the outputs of transformers and of similar libraries."""


def find_logits(output: object) -> Tensor | None:
    """The logits of an output: a tensor, an object with `logits`, a mapping with that key, or None."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        inner = cast(Mapping[Any, object], output).get(LOGITS)
    else:
        inner = getattr(output, LOGITS, None)
    return inner if isinstance(inner, Tensor) else None


@final
class LogitsOf(nn.Module):
    """A network that normalises its images, calls `network`, and returns the logits alone.

    The image classifiers of transformers return an object with `logits`, and expect images normalised with
    the mean and the deviation of their image processor:

    LogitsOf(network, mean=processor.image_mean, std=processor.image_std)

    One number applies to all channels; without `mean` and `std`, images are not normalised. With `keyword`,
    such as "pixel_values", images are passed under that name, else as the first argument.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Numbers | None = None,
        std: Numbers | None = None,
        keyword: str | None = None,
    ) -> None:
        super().__init__()
        self.normalise = _make_normalise(mean, std)
        self.network = network
        self.keyword = keyword
        self.training = self.normalise.training = network.training

    @override
    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.normalise, Normalise) and len(self.normalise.mean) not in (1, x.shape[1]):
            raise InputError(
                f"mean: has {len(self.normalise.mean)} numbers, but the images have {x.shape[1]} channels, "
                "expected one number, or one per channel; change mean and std, or convert the images"
            )
        images = self.normalise(x)
        output: object = (
            self.network(images) if self.keyword is None else self.network(**{self.keyword: images})
        )
        logits = find_logits(output)
        if logits is None:
            got = type(output).__name__
            raise InputError(
                f"network: returned a {got} without a tensor `{LOGITS}`, expected logits; "
                "write a module around it that returns them"
            )
        return logits


def _make_normalise(mean: Numbers | None, std: Numbers | None) -> nn.Module:
    if mean is None and std is None:
        return nn.Identity()
    if mean is None or std is None:
        missing = "mean" if mean is None else "std"
        raise InputError(f"{missing}: got none, expected both mean and std or neither; give both")
    means, stds = (
        (float(value),) if np.ndim(value) == 0 else tuple(float(number) for number in value)
        for value in cast(tuple[Any, Any], (mean, std))
    )
    check_mean_std(means, stds)
    return Normalise(means, stds)
