"""The speed of crafting without parameter gradients, in channels_last, on a folded network, and with fast
convolutions.

Every variant takes the same ten PGD steps on the same images. They are timed in turns within one run, in CPU
seconds. Compare only times within one run, because they vary with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import torch
import torch.nn.functional as F
from harness import SHAPES, model_spec
from torch import Tensor, nn

from allrounder import Pgd, Rng, Threat
from allrounder.attacks.base import perturb
from allrounder.inference.fast_crafting import craft_with_fast_convs
from allrounder.models import ModelSpec
from allrounder.system.memory import keep_freed_memory

STEPS = 10
EPS = 8 / 255
BATCH_SIZES = {"small-cnn": 64, "resnet18": 16, "wrn": 16}


def pgd(network: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, parameters: list[Tensor]) -> Tensor:
    """PGD without our optimisations; gradients of `parameters` are computed too and dropped."""
    x_adv = (x + EPS * (2 * Rng(0).uniform(x) - 1)).clamp(0, 1)
    for _ in range(STEPS):
        x_adv = x_adv.detach().requires_grad_()
        loss = F.cross_entropy(network(x_adv), y, reduction="sum")
        g = torch.autograd.grad(loss, [x_adv, *parameters])[0]
        x_adv = torch.clamp(x_adv.detach() + EPS / 4 * g.sign(), x - EPS, x + EPS).clamp(0, 1)
    return x_adv


def variants(spec: ModelSpec, shape: tuple[int, int, int], batch: int) -> dict[str, Callable[[], object]]:
    """The variants, from the crafting of the released code to ours."""

    def network(layout: torch.memory_format, gradients: bool) -> nn.Module:
        with Rng(0).seed_global():
            model = spec.build(10, shape).eval().requires_grad_(gradients)
        return cast(nn.Module, model.to(memory_format=layout))  # pyright: ignore[reportCallIssue]

    x = Rng(1).uniform(torch.empty(batch, *shape))
    y = Rng(2).integers(batch, 0, 10)
    released = network(torch.contiguous_format, True)
    frozen = network(torch.contiguous_format, False)
    channels_last = network(torch.channels_last, False)
    ours = network(torch.channels_last, True)
    fast = network(torch.channels_last, True)
    craft_with_fast_convs(fast)
    x_last = x.contiguous(memory_format=torch.channels_last)
    threat = Threat.parse("Linf:8/255")
    return {
        "with parameter gradients, as released": lambda: pgd(released, x, y, list(released.parameters())),
        "no parameter gradients": lambda: pgd(frozen, x, y, []),
        "and channels_last": lambda: pgd(channels_last, x_last, y, []),
        "and folded, as `perturb` does it": lambda: perturb(Pgd(steps=STEPS), ours, x, y, threat, Rng(0)),
        "and with fast convolutions": lambda: perturb(Pgd(steps=STEPS), fast, x, y, threat, Rng(0)),
    }


def measure(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median CPU seconds of each variant, measured in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begin = time.process_time()
            run()
            if number:  # the first round warms up
                seconds[name].append(time.process_time() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Print one table for each network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--network", choices=BATCH_SIZES, action="append", help="all by default")
    parser.add_argument("--batch", type=int, help=f"by default {BATCH_SIZES}")
    parser.add_argument("--json", action="store_true", help="print one object per network")
    parser.add_argument("--keep-memory", action="store_true", help="keep freed memory, as a training does")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for kind in arguments.network or BATCH_SIZES:
        batch = arguments.batch or BATCH_SIZES[kind]
        with keep_freed_memory() if arguments.keep_memory else nullcontext():
            medians = measure(variants(model_spec(kind), SHAPES[kind], batch), arguments.rounds)
        base, *_, ours, fast = medians.values()
        if arguments.json:
            ratios = {"released / ours": base / ours, "released / fast": base / fast}
            print(json.dumps({"network": kind, "batch": batch, **ratios}), flush=True)
            continue
        print(f"{kind}, batch {batch}, {arguments.threads} thread(s), PGD-{STEPS}, torch {torch.__version__}")
        for name, seconds in medians.items():
            print(f"  {base / seconds:5.2f} x  {1000 * seconds:7.1f} ms  {name}")


if __name__ == "__main__":
    main()
