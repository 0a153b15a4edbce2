"""Measure how batch-norm statistics change a trained network: scripts/measure_statistics.py RUN [WHICH ...].

Prints natural accuracy and accuracy under PGD-20 and APGD-CE on 300 test images, for the network's own
statistics, for those of 2,048 natural training images, and for those of the same images attacked by PGD-10
under each threat that the run selects its best weights by, and under --threat. WHICH are weights of the run,
such as last or a learner's name; by default last. The accuracies are under the first of these threats, or
under --threat.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from allrounder import craft, load
from allrounder.data.splits import stratified_indices
from allrounder.nn.batchnorm import recalibrate_
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.data import load_data, train_val_split
from allrounder.training.run import Run

NUM_TRAIN, NUM_TEST, BATCH_SIZE = 2048, 300, 64
ATTACKS = ("pgd-20", "apgd-ce")


def measure_accuracies(network: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> list[float]:
    """Return the natural accuracy and the accuracy under every attack, in percent."""
    images = [x, *(craft(network, x, y, attack=attack, threat=threat) for attack in ATTACKS)]
    with torch.no_grad():
        return [100 * float((network(batch).argmax(1) == y).float().mean()) for batch in images]


def measure_run(folder: str, names: Sequence[str], threat: Threat | None = None) -> None:
    """Print the accuracies of some weights of a run under several kinds of statistics."""
    recipe = Run(folder).recipe
    threat = threat or recipe.selection_threats[0]
    data = load_data(recipe)
    train, _ = train_val_split(recipe, data)
    rows = Rng(0).fold_in("recalibrate").permutation(len(train))[:NUM_TRAIN]
    x, y = train.fetch(rows), train.labels[rows]
    tested = stratified_indices(data.test, NUM_TEST, seed=0)
    test = data.test.fetch(tested), data.test.labels[tested]
    print(f"under {threat}")
    threats = {(type(each.norm), each.eps): each for each in (*recipe.selection_threats, threat)}.values()
    print("weights   statistics   " + "  ".join(f"{title:>8}" for title in ("natural", *ATTACKS)))
    for name in names:
        network = load(folder, name).eval()
        attacked = {str(each): craft(network, x, y, attack="pgd-10", threat=each) for each in threats}
        for kind, images in {"own": None, "natural": x, **attacked}.items():
            measured = copy.deepcopy(network)
            if images is not None:
                starts = range(0, NUM_TRAIN, BATCH_SIZE)
                recalibrate_(measured, [images[start : start + BATCH_SIZE] for start in starts])
            numbers = "  ".join(f"{number:8.1f}" for number in measure_accuracies(measured, *test, threat))
            print(f"{name:9} {kind:12} {numbers}", flush=True)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("which", nargs="*", default=["last"], help="weights of the run")
    parser.add_argument("--threat", type=Threat.parse, help="such as Linf:0.1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure_run(options.run, options.which, options.threat)


if __name__ == "__main__":
    main()
