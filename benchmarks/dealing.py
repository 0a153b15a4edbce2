"""How unequal the work of worker processes is if AutoAttack's images are divided once, before any attack.

    python benchmarks/dealing.py --data FILE    # the CIFAR-10 ResNet-18 in pyautoattack

An image that a first attack (here PGD-5) fools costs little, one that it does not fool thousands of passes.
The numbers are robust images of the worker that has most of them, over the ideal: the mean over random
divisions, and a division that gives every worker images of the same confidences.
"""

from __future__ import annotations

import argparse

import torch
from autoattack import load_case
from torch import Tensor

from allrounder import Pgd, Rng, Threat
from allrounder.attacks.base import perturb

DRAWS = 1000
"""Random divisions."""


def largest_share(robust: Tensor, order: Tensor, workers: int) -> int:
    """The number of robust images of the worker that has most of them."""
    return max(int(robust[order[worker::workers]].sum()) for worker in range(workers))


def main() -> None:
    """Print one line for each radius and number of workers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="../shared/data/cifar10_test_head.npz", help="CIFAR-10 test images")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threats", default="Linf:1/255,Linf:1.5/255,Linf:2/255")
    options = parser.parse_args()
    budgets = {"steps": 1, "fab_steps": 1, "targets": 1, "queries": 1}
    case = load_case(argparse.Namespace(network="resnet18", threat=None, **budgets, **vars(options)))
    model = case.model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x in case.x.split(50)]).double()
    confidence = logits.softmax(dim=1).max(dim=1).values
    by_confidence = torch.where(logits.argmax(1) == case.y, confidence, -1).argsort(stable=True)
    for text in options.threats.split(","):
        x_adv = perturb(Pgd(steps=5), model, case.x, case.y, Threat.parse(text), Rng(0)).x
        with torch.no_grad():
            robust = torch.cat([model(x) for x in x_adv.split(50)]).argmax(1) == case.y
        for workers in (2, 4):
            ideal = int(robust.sum()) / workers
            draws = (Rng(0).fold_in("draw", draw).permutation(len(robust)) for draw in range(DRAWS))
            mean = sum(largest_share(robust, order, workers) for order in draws) / DRAWS
            sorted_share = largest_share(robust, by_confidence, workers)
            print(
                f"{text}: {int(robust.sum())} of {len(robust)} robust, {workers} workers: "
                f"{mean / ideal:.2f} at random, {sorted_share / ideal:.2f} by confidence",
                flush=True,
            )


if __name__ == "__main__":
    main()
