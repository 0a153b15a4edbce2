"""Writes model.py of an ONNX export: a module that runs the network in ONNX Runtime, for queries only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allrounder.experiments.export.module import write_constants
from allrounder.models.base import Shape

TEXT = '''"""Runs {file}, a network that was trained with Allrounder. Needs torch and onnxruntime.

import model

network = model.load()  # from images (n, {shape}) in [0, 1] to logits (n, {classes})

Normalisation is part of the network: do not normalise the images. It has no gradients: attacks can only query
it, as Square does, or use images that were crafted on another network.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

{constants}


class OnnxNetwork(nn.Module):
    """A network that runs in ONNX Runtime on the CPU, with one thread."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def forward(self, x: Tensor) -> Tensor:
        """Return logits without gradients."""
        if not isinstance(x, Tensor):  # a tracer of torch calls with a proxy, which would crash the runtime
            raise TypeError(f"got a {{type(x).__name__}}, expected a tensor: this network cannot be traced")
        images = x.detach().cpu().float().contiguous().numpy()
        return torch.from_numpy(self.session.run(["logits"], {{"images": images}})[0])

    def __reduce__(self) -> tuple[type[OnnxNetwork], tuple[str]]:
        """Copies, also in other processes, open the file again."""
        return OnnxNetwork, (self.file,)


def load(weights: str | Path = WEIGHTS_FILE) -> nn.Module:
    """Load the network in evaluation mode."""
    return OnnxNetwork(str(weights)).eval()
'''


def write_onnx_module(classes: Sequence[str], shape: Shape, file: str, about: Mapping[str, Any]) -> str:
    """Return the source of a module that runs `file`, a path from its own folder."""
    return TEXT.format(
        file=file,
        shape=", ".join(map(str, shape)),
        classes=len(classes),
        constants=write_constants(file, classes, about),
    )
