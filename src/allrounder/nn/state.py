"""Arithmetic on named tensors: the parameters and buffers of a network, and averages of them.

Whole-number buffers (batch-norm's counters) have no average: they are copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

Weights: TypeAlias = dict[str, Tensor]


def weights_of(model: nn.Module) -> Weights:
    """The live tensors of a network by name, in its own order: changing them changes the network."""
    return {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}


def snapshot(weights: Mapping[str, Tensor]) -> Weights:
    """An independent copy; half-precision tensors are kept in float32, because averages need it."""
    return {name: _wide(tensor).clone() for name, tensor in weights.items()}


def zeros_like(weights: Mapping[str, Tensor]) -> Weights:
    """Zeros in the names, shapes and types of a snapshot."""
    return {name: torch.zeros_like(_wide(tensor)) for name, tensor in weights.items()}


def copy_(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """target <- source, name by name."""
    _check_fit(target, source)
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def blend_(
    target: Mapping[str, Tensor], source: Mapping[str, Tensor], decay: float, share: float = 1.0
) -> None:
    """target <- decay * target + (1 - decay) * share * source: one step of a moving average, or of a part."""
    Blend(target, source)(decay, share)


@final
class Blend:
    """`blend_` of the same tensors again and again: they are compared and sorted once, not in every step."""

    def __init__(self, target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
        """Tensors may change in place later, but not be replaced."""
        _check_fit(target, source)
        self.source = source
        self.kept, self.new = _floats(target, source)
        self.counters = [(t, source[name]) for name, t in target.items() if not t.is_floating_point()]
        self.same = all(new.dtype == kept.dtype for kept, new in zip(self.kept, self.new, strict=True))

    def __call__(self, decay: float, share: float = 1.0) -> None:
        """One step."""
        new = self.new
        if not self.same:
            new = [new.to(kept.dtype) for kept, new in zip(self.kept, self.new, strict=True)]
        torch._foreach_mul_(self.kept, decay)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(self.kept, new, alpha=(1 - decay) * share)  # pyright: ignore[reportPrivateImportUsage]
        for counter, newest in self.counters:
            counter.copy_(newest)


def add_(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """target <- target + source; counters keep the target's."""
    _check_fit(target, source)
    kept, new = _floats(target, source)
    torch._foreach_add_(kept, [n.to(k.dtype) for k, n in zip(kept, new, strict=True)])  # pyright: ignore[reportPrivateImportUsage]


def bezier(
    s: float, first: Mapping[str, Tensor], bend: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> Weights:
    """(1-s)^2 first + 2s(1-s) bend + s^2 second: a curve from s = 0 to 1; counters are the bend's."""
    _check_fit(first, bend)
    _check_fit(bend, second)
    return {
        name: (1 - s) ** 2 * first[name] + 2 * s * (1 - s) * tensor + s**2 * second[name]
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in bend.items()
    }


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The Euclidean distance between two sets of weights, counters left out."""
    _check_fit(a, b)
    left, right = _floats(a, b)
    return math.sqrt(
        sum(float((x.double() - y.double()).square().sum()) for x, y in zip(left, right, strict=True))
    )


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Weights:
    """Those whose name starts with a prefix, called by the rest of it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def misfit(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str | None:
    """The first name that one of two sets of weights lacks or has in another shape, if there is one."""
    odd = a.keys() ^ b.keys() or {name for name in a if a[name].shape != b[name].shape}
    return min(odd, default=None)


def all_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether there is no NaN and no infinity in any of them."""
    floats = [tensor for tensor in weights.values() if tensor.is_floating_point()]
    # Finite sums are proof and quick to find; others may be overflow, and are looked into.
    proven = not floats or bool(torch.stack([tensor.sum() for tensor in floats]).isfinite().all())
    return proven or all(bool(tensor.isfinite().all()) for tensor in floats)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _floats(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    return [a[name] for name in names], [b[name] for name in names]


def _check_fit(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    odd = misfit(a, b)
    if odd is not None:
        raise ValueError(f"weights of two different networks: {odd} does not fit")
