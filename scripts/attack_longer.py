"""Attack images that AutoAttack left robust with a longer Square: scripts/attack_longer.py RUN THREAT.

RUN is a finished training, such as one of a study, whose evaluation contains AutoAttack under THREAT. A
network whose gradients are masked may look robust because Square, the only attack that uses no gradient, had
too few queries. Prints how many of the robust images withstand --queries and --restarts under another seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from allrounder import Outcome, evaluate, load
from allrounder.attacks.square import Square
from allrounder.data.splits import Split, stratified_indices
from allrounder.errors import AllrounderError, InputError
from allrounder.evaluation.probes import Probe
from allrounder.threats.threat import Threat
from allrounder.training.data import load_data
from allrounder.training.run import Run


def find_robust_images(outcome: Outcome, test: Split, threat: Threat) -> Tensor:
    """Return the rows of the test images that AutoAttack left robust; raise InputError if they are others."""
    name = f"aa@{threat}"
    if name not in outcome.predicted:
        raise InputError(f"{name} was not evaluated, only: {', '.join(outcome.predicted)}")
    rows = stratified_indices(test, len(outcome), seed=outcome.facts["seed"]).sort().values
    if not torch.equal(test.labels[rows], torch.from_numpy(outcome.label)):
        raise InputError("the labels of the evaluation are not those of the test images")
    return rows[torch.from_numpy(outcome.predicted[name] == outcome.label)]


def attack_longer(folder: Path, which: str, threat: Threat, square: Square) -> tuple[int, int, int]:
    """Return the number of images, of those robust under AutoAttack, and of those robust under both."""
    outcome = Outcome.load(folder / "eval" / which / "outcome.safetensors")
    test = load_data(Run(folder).recipe).test
    rows = find_robust_images(outcome, test, threat)
    if not len(rows):
        return len(outcome), 0, 0
    probe = Probe("square", square, threat)
    seed = outcome.facts["seed"] + 1
    again = evaluate(load(folder, which), test.fetch(rows), test.labels[rows], probes=[probe], seed=seed)
    still = again.predicted[str(probe)] == again.label
    return len(outcome), len(rows), int(still.sum())


def main() -> None:
    """Read the arguments and attack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("run", type=Path, help="the folder of an evaluated run")
    parser.add_argument("threat", help="such as L2:2")
    parser.add_argument("--which", default="last", help="weights of the run")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        threat = Threat.parse(options.threat)
        square = Square(queries=options.queries, restarts=options.restarts)
        images, before, after = attack_longer(options.run, options.which, threat, square)
    except AllrounderError as error:
        raise SystemExit(f"{options.run}: {error}") from None
    print(f"{threat}: of {images} images, AutoAttack leaves {before} robust, then {square} {after}")


if __name__ == "__main__":
    main()
