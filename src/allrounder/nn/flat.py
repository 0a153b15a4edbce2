"""One buffer for the tensors of a network, so that arithmetic on all of them is one operation.

The weights of a small network are dozens of short tensors, and an operation on each of them costs more than
its numbers. In a buffer they keep their names, shapes and strides, and other code treats them as before.
Arithmetic on the buffer, element by element, has the bits of that on every tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from allrounder.types import NamedTensors

ALIGNMENT, GPU_ALIGNMENT = 64, 512
"""Every tensor begins at a multiple of this many bytes, as if it had memory of its own."""
Group: TypeAlias = tuple[list[int], Tensor]
"""The positions of the tensors in a buffer, and the buffer as a vector; or of one tensor, and itself."""


def flatten_(model: nn.Module) -> None:
    """Move the parameters of torch's own layers in a network into one buffer, and their floating-point
    buffers into another one, in their order; one for each type and device.

    Custom layers keep their tensors, because they may have views of them. A copy of a network copies all
    memory behind each of its buffers, so they must not be in that of the parameters.
    """
    layers = [module for module in model.modules() if type(module).__module__.startswith("torch.nn.")]
    shared = Counter(_memory(tensor) for tensor in (*model.parameters(), *model.buffers()))
    for kind in ("_parameters", "_buffers"):
        tensors = [tensor for layer in layers for tensor in getattr(layer, kind).values()]
        plain = {id(t): t for t in tensors if t is not None and _is_plain(t) and shared[_memory(t)] == 1}
        for key in dict.fromkeys((tensor.dtype, tensor.device) for tensor in plain.values()):
            _move_([tensor for tensor in plain.values() if (tensor.dtype, tensor.device) == key])


def map_buffers(function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Apply a function that keeps shapes, such as `torch.clone`, to tensors, or to the buffers that they are
    in. The results are in buffers in the same way."""
    results = list(tensors)
    for positions, buffer in group_by_buffer(tensors):
        new = function(buffer)
        if len(positions) == 1:
            results[positions[0]] = new
            continue
        begin = buffer.storage_offset()
        for position in positions:
            tensor = tensors[position]
            results[position] = new.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)
    return results


def group_by_buffer(tensors: Sequence[Tensor]) -> Iterator[Group]:
    """Group tensors that fill a part of one buffer."""
    by_memory: dict[tuple[int, torch.dtype], list[int]] = {}
    for position, tensor in enumerate(tensors):
        if tensor.is_meta or tensor.layout != torch.strided:
            yield [position], tensor
            continue
        by_memory.setdefault((tensor.untyped_storage().data_ptr(), tensor.dtype), []).append(position)
    for positions in by_memory.values():
        positions.sort(key=lambda position: tensors[position].storage_offset())
        buffer = _find_buffer([tensors[position] for position in positions])
        if buffer is not None:
            yield positions, buffer
        else:
            yield from (([position], tensors[position]) for position in positions)


def merge_tensors(tensors: NamedTensors) -> list[Tensor]:
    """The buffers that tensors fill, and the other tensors."""
    return [buffer for _, buffer in group_by_buffer(list(tensors.values()))]


def merge_by_buffer(
    targets: Sequence[Tensor], sources: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Replace tensors by the buffers that they fill, where targets and sources fill theirs in the same way,
    so that arithmetic between them, element by element, takes fewer operations."""
    merged_targets: list[Tensor] = []
    merged_sources: list[Tensor] = []
    for positions, buffer in group_by_buffer(sources):
        some = [targets[position] for position in positions]
        same_strides = all(targets[k].stride() == sources[k].stride() for k in positions)
        target = _find_buffer(some) if len(some) > 1 and same_strides else None
        merged_targets += some if target is None else [target]
        merged_sources += [sources[k] for k in positions] if target is None else [buffer]
    return merged_targets, merged_sources


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor of floating-point numbers has memory of its own, all of which it fills."""
    is_known = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return is_known and tensor.is_floating_point() and tensor.untyped_storage().nbytes() == tensor.nbytes


def _memory(tensor: Tensor) -> int:
    """Identifies the memory of a tensor."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _move_(tensors: Sequence[Tensor]) -> None:
    begins = [0]
    for tensor in tensors:
        begins.append(begins[-1] + _padded_size(tensor))
    memory = torch.zeros(begins[-1], dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor, begin in zip(tensors, begins, strict=False):
        moved = memory.as_strided(tensor.shape, _dense_strides(tensor), begin)
        tensor.data = moved.copy_(tensor.detach())


def _find_buffer(tensors: Sequence[Tensor]) -> Tensor | None:
    """The part of a buffer that two or more tensors fill in this order, with the gaps between them."""
    first = tensors[0]
    memory = first.untyped_storage()
    begin = end = first.storage_offset()
    for tensor in tensors:
        is_next = tensor.storage_offset() == end and tensor.untyped_storage().data_ptr() == memory.data_ptr()
        if not is_next or tensor.stride() != _dense_strides(tensor):
            return None
        end += _padded_size(tensor)
    if len(tensors) == 1 or end * first.element_size() > memory.nbytes():
        return None
    return first.detach().as_strided((end - begin,), (1,), begin)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor if it fills a block of memory; else those of a tensor like it that does."""
    return torch.empty_like(tensor, device="meta").stride()


def _padded_size(tensor: Tensor) -> int:
    """The number of elements from the begin of a tensor to that of the next one."""
    step = (ALIGNMENT if tensor.is_cpu else GPU_ALIGNMENT) // tensor.element_size()
    return -(-tensor.numel() // step) * step
