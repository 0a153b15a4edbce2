"""Arithmetic on state dicts: copies, sums and averages of a network's parameters and buffers. Integer
buffers, such as batch-norm's counters, have no average: they are copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import final

import torch
from torch import Tensor, nn

from allrounder.nn.flat import map_buffers, merge_by_buffer
from allrounder.types import NamedTensors, Weights


def weights_of(model: nn.Module) -> Weights:
    """The parameters and buffers of a network by name, sharing memory with it."""
    return {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}


def clone(weights: NamedTensors) -> Weights:
    """An independent copy; half-precision tensors become float32, which averages need. Tensors that share a
    buffer (see flat.py) share another one."""
    return _map(torch.clone, weights)


def zeros_like(weights: NamedTensors) -> Weights:
    """Zeros with the names, shapes and dtypes of `clone(weights)`."""
    return _map(torch.zeros_like, weights)


def copy_(target: NamedTensors, source: NamedTensors) -> None:
    """target <- source, name by name."""
    _check_compatible(target, source)
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def ema_update_(target: NamedTensors, source: NamedTensors, decay: float, share: float = 1.0) -> None:
    """target <- decay * target + (1 - decay) * share * source: one step of a (partial) moving average."""
    EmaUpdate(target, source)(decay, share)


@final
class EmaUpdate:
    """`ema_update_` of the same tensors in many steps; they are checked and sorted only once."""

    def __init__(self, target: NamedTensors, source: NamedTensors) -> None:
        """The tensors may change in place later, but must not be replaced."""
        _check_compatible(target, source)
        self.target = target
        self.target_floats, self.source_floats = _float_tensors(target, source)
        self.counters = [(t, source[name]) for name, t in target.items() if not t.is_floating_point()]
        pairs = zip(self.source_floats, self.target_floats, strict=True)
        self.has_equal_types = all(source.dtype == target.dtype for source, target in pairs)
        if self.has_equal_types:
            merged = merge_by_buffer(self.target_floats, self.source_floats)
            self.target_floats, self.source_floats = merged

    def __call__(self, decay: float, share: float = 1.0) -> None:
        """Take one step."""
        sources = self.source_floats
        if not self.has_equal_types:
            sources = _convert(sources, self.target_floats)
        torch._foreach_mul_(self.target_floats, decay)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(self.target_floats, sources, alpha=(1 - decay) * share)  # pyright: ignore[reportPrivateImportUsage]
        for old, new in self.counters:
            old.copy_(new)


def add_(target: NamedTensors, source: NamedTensors) -> None:
    """target <- target + source; integer buffers keep the target's values."""
    _check_compatible(target, source)
    targets, sources = _float_tensors(target, source)
    torch._foreach_add_(targets, _convert(sources, targets))  # pyright: ignore[reportPrivateImportUsage]


def sum_weights(members: Iterable[NamedTensors]) -> Weights:
    """The sum of several networks' weights, added in order; integer buffers are those of the first member."""
    total: Weights = {}
    for member in members:
        if total:
            add_(total, member)
        else:
            total = clone(member)
    return total


def average_weights(members: Iterable[NamedTensors], shares: Sequence[float] | None = None) -> Weights:
    """The average of several networks' weights: equal, or weighted by positive shares. Only the average and
    one member are held at a time. Integer buffers are those of the last member."""
    average: Weights = {}
    total = 0.0
    weights = repeat(1.0) if shares is None else shares
    for member, share in zip(members, weights, strict=shares is not None):
        average = average or zeros_like(member)
        total += share
        ema_update_(average, member, decay=1 - share / total)
    return average


def interpolate(s: float, first: NamedTensors, second: NamedTensors) -> Weights:
    """(1 - s) first + s second; integer buffers, and everything for s = 1, are those of the second."""
    _check_compatible(first, second)
    return {
        name: (1 - s) * first[name].to(tensor.dtype) + s * tensor
        if tensor.is_floating_point() and s != 1
        else tensor
        for name, tensor in second.items()
    }


def bezier(s: float, first: NamedTensors, bend: NamedTensors, second: NamedTensors) -> Weights:
    """(1-s)^2 first + 2s(1-s) bend + s^2 second: a point of a curve; integer buffers are the bend's."""
    _check_compatible(first, bend)
    _check_compatible(bend, second)
    return {
        name: (1 - s) ** 2 * first[name] + 2 * s * (1 - s) * tensor + s**2 * second[name]
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in bend.items()
    }


def distance(a: NamedTensors, b: NamedTensors) -> float:
    """The Euclidean distance between two networks' weights, without integer buffers."""
    _check_compatible(a, b)
    pairs = zip(*_float_tensors(a, b), strict=True)
    return math.sqrt(sum(float((x.double() - y.double()).square().sum()) for x, y in pairs))


def strip_prefix(prefix: str, tensors: NamedTensors) -> Weights:
    """The tensors whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def first_mismatch(a: NamedTensors, b: NamedTensors) -> str | None:
    """The first name that only one of both has, or that differs in shape; None if they match."""
    mismatched = a.keys() ^ b.keys() or {name for name in a if a[name].shape != b[name].shape}
    return min(mismatched, default=None)


def all_finite(weights: NamedTensors) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return are_finite(list(weights.values()))


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    # Sums are quick, and finite ones prove it. A sum that is not finite may have overflowed, so look closer.
    all_sums_finite = not floats or bool(torch.stack([tensor.sum() for tensor in floats]).isfinite().all())
    return all_sums_finite or all(bool(tensor.isfinite().all()) for tensor in floats)


def _map(function: Callable[[Tensor], Tensor], weights: NamedTensors) -> Weights:
    tensors = [_at_least_float32(tensor) for tensor in weights.values()]
    return dict(zip(weights, map_buffers(function, tensors), strict=True))


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _convert(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.to(other.dtype) for tensor, other in zip(tensors, like, strict=True)]


def _float_tensors(a: NamedTensors, b: NamedTensors) -> tuple[list[Tensor], list[Tensor]]:
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    return [a[name] for name in names], [b[name] for name in names]


def _check_compatible(a: NamedTensors, b: NamedTensors) -> None:
    name = first_mismatch(a, b)
    if name is not None:
        raise ValueError(f"the weights belong to different networks: {name} is missing or differs in shape")
