"""Digests of tensors and networks, which tell whether two of them are the same."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


def add_module_(digest: hashlib._Hash, model: nn.Module) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the structure, the weights and the buffers of a network to a digest."""
    digest.update(str(model).encode())
    for name, tensor in [*model.state_dict().items(), *model.named_buffers()]:
        digest.update(name.encode() + to_bytes(tensor))


def to_bytes(state: object) -> bytes:
    """The memory of a tensor, or the text of any other state that a module may have."""
    if not isinstance(state, Tensor) or state.dim() == 0:
        return repr(state.item() if isinstance(state, Tensor) else state).encode()
    return state.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
