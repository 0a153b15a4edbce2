"""The speed of Winograd convolutions, layer by layer: those of ResNet-18 for 32x32 images, and one of
WRN-28-10.

Times are the minimum of several calls in CPU seconds, on one thread. `forward` and `backward` are a layer and
its input gradient, without gradients of weights. `filters` is the transform of new weights for both
directions, which an attack of ten steps pays once for twenty calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from harness import cpu_seconds
from torch import Tensor, nn

from allrounder import Rng
from allrounder.inference.winograd_layer import WinogradConv
from allrounder.system.memory import keep_freed_memory

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4), (320, 16))
"""Channels, and pixels along a side."""


def milliseconds(run: Callable[[], object], times: int) -> float:
    """The least CPU time of several calls, after one that warms up."""
    run()
    return 1000 * min(cpu_seconds(run) for _ in range(times))


def measure(channels: int, side: int, batch: int, times: int) -> str:
    """One row of the table."""
    with Rng(0).seed_global():
        plain = nn.Conv2d(channels, channels, 3, padding=1).requires_grad_(False)
    plain.weight.data = plain.weight.data.contiguous(memory_format=torch.channels_last)
    fast = WinogradConv(plain)
    if not fast.pays_off(side, side):
        return f"{channels} | {side}x{side} | - | plain, because it does not pay off on this machine"
    x, g = (Rng(seed).normal(torch.empty(batch, channels, side, side)) for seed in (1, 2))
    x, g = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, g))

    def differentiate(layer: nn.Conv2d) -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(layer(leaf), leaf, g)[0]

    def convolve() -> None:
        fast.convolve(x)
        fast.input_grad(g)

    def transform_and_convolve() -> None:
        fast.refresh_()
        convolve()

    forward = [milliseconds(lambda layer=layer: layer(x), times) for layer in (plain, fast)]
    both = [milliseconds(lambda layer=layer: differentiate(layer), times) for layer in (plain, fast)]
    exact, difference = differentiate(plain), differentiate(fast) - differentiate(plain)
    error = (difference.square().sum() / exact.square().sum()).sqrt().item()
    filters = milliseconds(transform_and_convolve, times) - milliseconds(convolve, times)
    cells = [f"{channels}", f"{side}x{side}", f"{forward[0]:.0f}", f"{forward[1]:.0f}"]
    cells += [
        f"{both[0]:.0f}",
        f"{both[1]:.0f}",
        f"{both[0] / both[1]:.2f}",
        f"{filters:.1f}",
        f"{error:.0e}",
    ]
    return " | ".join(cells)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"1 thread, torch {torch.__version__}, batch {options.batch}, milliseconds")
    print("channels | size | forward | fast | with backward | fast | ratio | filters | error")
    with keep_freed_memory():  # as in a training
        for channels, side in LAYERS:
            print(measure(channels, side, options.batch, options.times), flush=True)


if __name__ == "__main__":
    main()
