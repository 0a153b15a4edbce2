"""Evaluations: verdicts, distances and stages of every attack, of cascades, and of corrupted images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from allrounder.attacks import Apgd, Cascade, Fab, Pgd, Restarts, Square
from allrounder.data.base import TensorSplit
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.distributed import World
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.report.outcome import Outcome
from allrounder.threats.threat import Threat
from tests.golden.cases.attacks import ATTACKS, NORMS, find_threat
from tests.golden.cases.inference import make_wide_network
from tests.golden.results import Result, hash_arrays, make_result
from tests.golden.subjects import CLASSES, make_images, make_network

LANE = 8
CASCADE = Cascade(
    attacks=(
        *(Apgd(steps=6), Apgd(steps=5, surrogate="dlr", targets=2)),
        *(Fab(steps=4, targets=2), Square(queries=40), Restarts(attack=Pgd(steps=2), count=2)),
    )
)
"""AutoAttack with a small budget, and one attack more."""


def make_split(count: int = 20, channels: int = 1, size: int = 12) -> TensorSplit:
    """Make images to evaluate on."""
    return TensorSplit(*make_images(count, channels, size, seed=2), CLASSES)


def summarise(outcome: Outcome) -> Result:
    """Summarise an outcome: accuracies, and a digest of predictions, distances and stages."""
    arrays: dict[str, Any] = {"label": outcome.label}
    kinds = {"predicted": outcome.predicted, "distance": outcome.distance, "stage": outcome.stage}
    for kind, by_probe in kinds.items():
        arrays |= {f"{kind} {number:03d}": array for number, array in enumerate(by_probe.values())}
    correct = [float((predicted == outcome.label).mean()) for predicted in outcome.predicted.values()]
    return make_result(arrays, correct)


def run_probes(
    probes: Sequence[Probe], model: nn.Module | None = None, world: World | None = None, **options: Any
) -> Result:
    """Evaluate a small network under some probes."""
    split = options.pop("split", None) or make_split()
    network = model or make_network()
    eval_options = EvalOptions(batch_size=LANE, check="skip", world=world or World.single_process())
    return summarise(evaluate(network, split, probes=probes, options=eval_options, **options))


def keep_examples(probes: Sequence[Probe], split: TensorSplit | None = None, seed: int = 0) -> Result:
    """Evaluate a small network under some probes; the digest is also one of the adversarial images."""
    with TemporaryDirectory() as folder:
        out, images = Path(folder) / "eval", split or make_split()
        options = EvalOptions(batch_size=LANE, check="skip", keep_examples=True)
        outcome = evaluate(make_network(), images, probes=probes, seed=seed, out=out, options=options)
        found = summarise(outcome)
        files = sorted(out.glob("examples/*.safetensors"))
        kept = {f"{file.stem} {key}": tensor for file in files for key, tensor in load_file(file).items()}
    return {"losses": found["losses"], "digest": f"{found['digest']} {hash_arrays(kept)}"}


def run_attack(name: str) -> Result:
    """Evaluate one attack in every norm."""
    return keep_examples([Probe(name, ATTACKS[name], find_threat(name, norm)) for norm in NORMS])


def run_cascade(norm: str, seed: int = 0) -> Result:
    """Evaluate PGD and the cascade in one norm."""
    threat = Threat.parse(NORMS[norm])
    return keep_examples([Probe.of("pgd-5", threat), Probe("all", CASCADE, threat)], seed=seed)


def run_autoattack(norm: str) -> Result:
    """Evaluate PGD and the published AutoAttack on five images in one norm."""
    threat = Threat.parse({"linf": "Linf:15/255", "l2": "L2:0.4"}[norm])
    return keep_examples([Probe.of("pgd-20", threat), Probe.of("aa", threat)], make_split(5))


def run_part() -> Result:
    """Evaluate a balanced part of the images."""
    return run_probes([Probe.parse("pgd-3@Linf:0.05")], n=11, seed=4)


def run_wide() -> Result:
    """Evaluate a network whose convolutions have quick forms, in lanes of the default width."""
    network, (x, _) = make_wide_network(), make_images(10, 3, 8, seed=2)
    split = TensorSplit(x, network(x).argmax(1), CLASSES)
    probes = [Probe.parse("pgd-3@Linf:0.04"), Probe("apgd", Apgd(steps=5), Threat.parse("L2:0.3"))]
    return summarise(evaluate(network, split, probes=probes, options=EvalOptions(check="skip")))


def run_checked() -> Result:
    """Evaluate with the checks before it, into a folder, in two calls."""
    with TemporaryDirectory() as folder:
        model, split = make_network(), make_split()
        out, options = Path(folder) / "eval", EvalOptions(batch_size=LANE, check="note")
        probes = ["pgd-2@Linf:0.05", "pgd-3@L2:0.5"]
        evaluate(model, split, probes=probes[:1], n=10, out=out, options=options)
        return summarise(evaluate(model, split, probes=probes, out=out, options=options))


@contextmanager
def use_empty_cache():
    """Let corrupted images be generated, whatever sets this machine has."""
    before = os.environ.get(CACHE_VARIABLE)
    with TemporaryDirectory() as folder:
        os.environ[CACHE_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE_VARIABLE)
            os.environ |= {} if before is None else {CACHE_VARIABLE: before}


def run_corruptions(ood: str) -> Result:
    """Evaluate on corrupted images."""
    with use_empty_cache():
        network, split = make_network(channels=3), make_split(12, 3)
        # Corrupted images are made of bytes.
        split = TensorSplit((split.images * 255).round().to(torch.uint8), split.labels, CLASSES)
        return summarise(
            evaluate(network, split, ood=ood, options=EvalOptions(batch_size=LANE, check="skip"))
        )


CASES: dict[str, Callable[[], Result]] = {
    **{f"evaluation/attack/{name}": partial(run_attack, name) for name in ATTACKS},
    **{f"evaluation/cascade/{norm}": partial(run_cascade, norm) for norm in NORMS},
    "evaluation/cascade/seed": partial(run_cascade, "linf", 7),
    "evaluation/autoattack/linf": partial(run_autoattack, "linf"),
    "evaluation/autoattack/l2": partial(run_autoattack, "l2"),
    "evaluation/part": run_part,
    "evaluation/wide": run_wide,
    "evaluation/checked": run_checked,
    "evaluation/corruptions": partial(
        run_corruptions, "fog@c:5,gaussian_noise@c:2,glass_blur@c:3,spatter@c:1"
    ),
    "evaluation/perturbations": partial(run_corruptions, "rotate@p,snow@p,shot_noise@p"),
}
