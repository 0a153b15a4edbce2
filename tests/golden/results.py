"""What a golden case returns, how arrays become a digest, and how two results are compared.

Nothing here depends on a name of the package, so this file stays as it is when names change.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypedDict

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

Arrays: TypeAlias = Mapping[str, "Tensor | NDArray[Any]"]
RELATIVE, ABSOLUTE = 0.1, 0.05
"""How far losses may differ between machines whose arithmetic differs: attacks amplify rounding."""


class Result(TypedDict):
    """Losses, or other numbers that a person can read, and a digest of everything else."""

    losses: list[float]
    digest: str


def hash_arrays(arrays: Arrays) -> str:
    """Hash types, shapes and bytes of arrays in the order of their sorted keys; keys are not hashed."""
    total = hashlib.sha256()
    for key in sorted(arrays):
        item = arrays[key]
        array = np.ascontiguousarray(item.detach().cpu().numpy() if isinstance(item, Tensor) else item)
        total.update(f"{array.dtype.str} {tuple(item.shape)}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def make_result(arrays: Arrays, losses: Iterable[float] = ()) -> Result:
    """Put losses and the digest of arrays together."""
    return {"losses": [float(loss) for loss in losses], "digest": hash_arrays(arrays)}


def find_exact_difference(expected: Result, found: Result) -> str | None:
    """Compare two results bit for bit; return what differs, or None."""
    if len(expected["losses"]) != len(found["losses"]):
        return f"{len(found['losses'])} losses, expected {len(expected['losses'])}"
    for number, (old, new) in enumerate(zip(expected["losses"], found["losses"], strict=True)):
        if old.hex() != new.hex():
            return f"loss {number} is {new!r}, expected {old!r}"
    if expected["digest"] != found["digest"]:
        return f"digest is {found['digest'][:60]}, expected {expected['digest'][:60]}"
    return None


def find_rough_difference(expected: Result, found: Result) -> str | None:
    """Compare the losses of two results with a tolerance; return what differs, or None."""
    if len(expected["losses"]) != len(found["losses"]):
        return f"{len(found['losses'])} losses, expected {len(expected['losses'])}"
    for number, (old, new) in enumerate(zip(expected["losses"], found["losses"], strict=True)):
        both_nan = math.isnan(old) and math.isnan(new)
        if not both_nan and not math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            return f"loss {number} is {new!r}, expected about {old!r}"
    return None


def describe_arithmetic() -> dict[str, str]:
    """Describe the arithmetic of this machine: versions, the processor's instructions, and a digest of fixed
    computations. Results are equal bit for bit where this is equal."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "computations": hash_arrays(_compute_samples()),
    }


def _compute_samples() -> dict[str, Tensor | NDArray[Any]]:
    """Run convolutions, products, reductions, functions and random numbers of fixed inputs."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor | NDArray[Any]] = {}
    for channels, width, size in ((1, 8, 28), (3, 16, 32), (32, 32, 7), (128, 128, 8)):
        x = torch.rand(6, channels, size, size, generator=generator)
        weight = torch.randn(width, channels, 3, 3, generator=generator)
        for stride, layout in (
            (1, torch.channels_last),
            (2, torch.channels_last),
            (1, torch.contiguous_format),
        ):
            leaf = x.to(memory_format=layout).requires_grad_()
            kernel = weight.to(memory_format=layout).requires_grad_()
            y = F.conv2d(leaf, kernel, stride=stride, padding=1)
            scaled = F.batch_norm(y, None, None, training=True).tanh()
            gradients = torch.autograd.grad(scaled.square().sum(), (leaf, kernel))
            name = f"conv {channels} {stride} {layout}"
            found |= {f"{name} {k}": t for k, t in enumerate((y, scaled, *gradients))}
    a, b = (torch.randn(37, n, 129, generator=generator) for n in (64, 65))
    found["matrix"] = a[0] @ b[0].T
    found["matrices"] = torch.bmm(a, b.transpose(1, 2))
    found["double"] = a[0].double() @ b[0].double().T
    for function in (torch.exp, torch.tanh, torch.sin, torch.rsqrt, torch.log1p, torch.erf):
        found[function.__name__] = function(a.abs() + 0.1)
    found |= {"softmax": a.log_softmax(-1), "sum": a.sum((0, 2)), "sorted": a[0].argsort(), "std": a.std(1)}
    found["normal"] = torch.empty(1001).normal_(generator=generator)
    found["numpy"] = np.exp(a.numpy()).sum(axis=-1) + np.fft.rfft(b.numpy()[0, :64], axis=0).real[:1, :64]
    pixels = (torch.rand(32, 32, 3, generator=generator) * 255).byte().numpy()
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "JPEG", quality=60)
        found["jpeg"] = np.frombuffer(file.getvalue(), np.uint8)
    return found
