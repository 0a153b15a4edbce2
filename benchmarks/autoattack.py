"""AutoAttack and its stages, ours and the public implementation: accuracy, time, passes and memory.

    python benchmarks/autoattack.py embedded               # an adversarially trained network, full budgets
    python benchmarks/autoattack.py resnet18 --data FILE   # the CIFAR-10 ResNet-18 in pyautoattack

Needs the extra `oracle`. Every measurement runs in its own process, ours and theirs in turns, and counts the
CPU seconds of one thread; --both-cores also compares two of our processes with two of their threads, by the
clock, which needs an idle machine. Memory is the peak of all processes of a side together. Compare only
ratios within one run, because absolute times vary with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tree_memory import run_and_measure

import allrounder as ar
from allrounder.attacks import Apgd, AutoAttack, Cascade, Fab
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.evaluation.probes import AttackStage, Probe
from allrounder.evaluation.runner import CHUNK_IMAGES
from allrounder.models.external import load_network
from allrounder.threats.threat import Threat

ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "aa")
RUN = Path("runs/demo/at-linf/seed-0")
"""The same folder as that of the demonstration."""


@dataclass(frozen=True)
class Case:
    """A network, images, a threat, and the budgets of both sides."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    steps: int = 100
    """Steps of APGD."""
    fab_steps: int = 100
    targets: int = 9
    queries: int = 5000
    batch_size: int | None = None
    """The batch size of our side; None for its default."""
    public_batch_size: int = 250
    """That of the public side, whose default is 250."""


def load_case(options: argparse.Namespace) -> Case:
    """Load the network and the images; the embedded network is trained in the first call."""
    if options.network == "embedded":
        ar.train(ar.Recipe.load("embedded/at-linf"), RUN, resume=True)
        data = ar.Run(RUN).recipe.data.load()
        model = ar.load(RUN, "best")
        budgets: dict[str, int] = {}
    else:
        spec = find_spec("pyautoattack")
        assert spec is not None and spec.origin is not None
        file = Path(spec.origin).parent / "examples" / "model_test.pt"
        data = load_eval_data(options.data)
        model = load_network("resnet18", file, classes=10, shape=(3, 32, 32))
        budgets = {name: getattr(options, name) for name in ("steps", "fab_steps", "targets", "queries")}
    rows = torch.arange(options.images)
    threat = Threat.parse(options.threat or ("Linf:0.1" if options.network == "embedded" else "Linf:1/255"))
    sizes = {name: getattr(options, name) for name in ("batch_size", "public_batch_size")}
    return Case(model, data.test.fetch(rows), data.test.labels[rows], threat, **budgets, **sizes)


def measure_ours(case: Case, attack: str, workers: int) -> dict[str, Any]:
    """Seconds, robust images and passes of our evaluation, including the preflight checks."""
    stages = [Apgd(surrogate="dlr"), *AutoAttack().stages(case.threat.norm)]
    short = {stage.label(): with_budgets(stage, case) for stage in stages}
    whole = Cascade(attacks=tuple(short[stage.label()] for stage in stages[1:]))
    probe = Probe(attack, whole if attack == "aa" else short[attack], case.threat)
    last: dict[tuple[str, str], ar.ProgressEvent] = {}

    def record(event: ar.ProgressEvent) -> None:
        last[event.name, event.stage] = event

    def batch_width(stage: str) -> int:
        name = stage.partition("@")[0]
        batch_size = outcome.facts["batch_size"]
        if name not in short:
            return batch_size
        return AttackStage(probe, short[name]).batch_width(10, case.x[0].numel(), batch_size)

    cpu_begin = time.process_time()
    wall_begin = time.perf_counter()
    options = ar.EvalOptions(batch_size=case.batch_size)
    outcome = ar.evaluate(
        case.model, case.x, case.y, probes=[probe], workers=workers, progress=record, options=options
    )
    return {
        "cpu": time.process_time() - cpu_begin,
        "wall": time.perf_counter() - wall_begin,
        "robust": (outcome.predicted[str(probe)] == outcome.label).tolist(),
        "forwards": sum(batch_width(stage) * event.forwards for (_, stage), event in last.items()),
        "backwards": sum(batch_width(stage) * event.backwards for (_, stage), event in last.items()),
    }


def measure_public(case: Case, attack: str) -> dict[str, Any]:
    """The same for the public implementation."""
    from pyautoattack import AutoAttack as Public  # pyright: ignore[reportMissingImports]

    model = CountingModel(case.model)
    norm: Any = case.threat.norm.name
    side: Any = Public(model, norm=norm, eps=case.threat.eps, seed=0, device="cpu")
    if attack != "aa":
        side.attacks_to_run = [attack]
    if attack == "apgd-dlr":
        side.apgd.n_restarts = 1  # the standard version does not contain it
    set_budgets(side, case)
    cpu_begin = time.process_time()
    wall_begin = time.perf_counter()
    x_adv: Tensor = side.run_standard_evaluation(case.x, case.y, batch_size=case.public_batch_size)[0]
    seconds = {"cpu": time.process_time() - cpu_begin, "wall": time.perf_counter() - wall_begin}
    with torch.no_grad():
        robust = (case.model(x_adv).argmax(1) == case.y).tolist()
    return {**seconds, "robust": robust, "forwards": model.forwards, "backwards": model.backwards}


def with_budgets(stage: Any, case: Case) -> Any:
    """One of our stages with those budgets that it has; an untargeted attack gets no targets."""
    steps = case.fab_steps if isinstance(stage, Fab) else case.steps
    budgets = {"steps": steps, "targets": case.targets, "queries": case.queries}
    names = {field.name for field in fields(stage)} - (
        {"targets"} if not getattr(stage, "targets", 0) else set()
    )
    return replace(stage, **{name: budget for name, budget in budgets.items() if name in names})


def set_budgets(side: Any, case: Case) -> None:
    """Set the budgets of the public attacks. APGD plans its steps when it is built, so it is built again."""
    base = import_module("pyautoattack.autopgd_base")
    same = {"norm": side.norm, "eps": side.epsilon, "seed": side.seed, "device": "cpu", "logger": side.logger}
    for name, kind in (("apgd", base.APGDAttack), ("apgd_targeted", base.APGDAttack_targeted)):
        old = getattr(side, name)
        new = kind(side.model, n_iter=case.steps, n_restarts=old.n_restarts, **same)
        new.use_largereps = old.use_largereps
        setattr(side, name, new)
    side.fab.n_iter = case.fab_steps
    side.apgd_targeted.n_target_classes = side.fab.n_target_classes = case.targets
    side.square.n_queries = case.queries


class CountingModel(nn.Module):
    """Counts the images of forward and of backward passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = 0
        self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        """The logits; counts the pass."""
        self.forwards += len(x)
        if x.requires_grad and torch.is_grad_enabled():
            x = x.clone()
            x.register_hook(self._count)
        return self.model(x)

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def run_side(options: argparse.Namespace, side: str, attack: str, cores: int) -> dict[str, Any]:
    """Run one measurement in its own process, which gets the same options."""
    names = (
        "data",
        "images",
        "threat",
        "steps",
        "fab_steps",
        "targets",
        "queries",
        "batch_size",
        "public_batch_size",
    )
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    more = {**given, "side": side, "attacks": attack, "cores": cores}
    words = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    printed, peak = run_and_measure([sys.executable, __file__, options.network, *words])
    return {**json.loads(printed.splitlines()[-1]), "memory": peak}


def compare(options: argparse.Namespace, attack: str, cores: int) -> dict[str, Any]:
    """Run both sides in turns, and return their numbers: ours first, then theirs."""
    measured: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    for _ in range(options.rounds):
        for side, runs in measured.items():
            runs.append(run_side(options, side, attack, cores))
    clock = "cpu" if cores == 1 else "wall"
    n = options.images
    sides = [runs[0] for runs in measured.values()]
    ours, theirs = (np.array(side["robust"]) for side in sides)
    seconds = [statistics.median(run[clock] for run in runs) for runs in measured.values()]
    return {
        "attack": attack,
        "cores": cores,
        "robust": [float(ours.mean()), float(theirs.mean())],
        "fooled by one only": [int((~ours & theirs).sum()), int((ours & ~theirs).sum())],
        "seconds": [value / n for value in seconds],
        "faster": seconds[1] / seconds[0],
        "passes": [f"{side['forwards'] // n}+{side['backwards'] // n}" for side in sides],
        "MB": [max(run["memory"] for run in runs) for runs in measured.values()],
    }


def report(options: argparse.Namespace) -> None:
    """Run both sides in turns and print one line per attack."""
    case = load_case(options)
    fab = "" if case.fab_steps == case.steps else f" (FAB {case.fab_steps})"
    budgets = f"{case.steps} steps{fab}, {case.targets} targets, {case.queries} queries"
    if not options.json:
        print(f"{options.network}, {case.threat}, {len(case.x)} images, {budgets}, torch {torch.__version__}")
        print("          cores  robust %    fooled by one only", end="  ")
        print("seconds/image      times faster  passes/image  MB")
    wanted = [(name, 1) for name in options.attacks.split(",") if name] + [("aa", 2)] * options.both_cores
    for attack, cores in wanted:
        row = compare(options, attack, cores)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        robust, fooled, seconds = row["robust"], row["fooled by one only"], row["seconds"]
        print(
            f"{attack:10}{cores:<7}{100 * robust[0]:5.1f} {100 * robust[1]:5.1f}"
            f"  {fooled[0]:8} {fooled[1]:4}     {seconds[0]:8.4f} {seconds[1]:8.4f}  {row['faster']:9.2f}"
            f"    {' '.join(row['passes'])}  {row['MB'][0]:.0f} {row['MB'][1]:.0f}",
            flush=True,
        )


def main() -> None:
    """Measure both sides; with --side, measure that side in this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=("embedded", "resnet18"))
    parser.add_argument("--data", default="../shared/data/cifar10_test_head.npz", help="CIFAR-10 test images")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threat")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument(
        "--steps", type=int, default=100, help="of APGD; for the ResNet-18, like the next three"
    )
    parser.add_argument("--fab-steps", type=int, default=100)
    parser.add_argument("--targets", type=int, default=9)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, help="of our side; by default that of evaluate")
    parser.add_argument(
        "--public-batch-size", type=int, default=250, help="of the public side, by default 250"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--both-cores", action="store_true", help="also measure aa on two cores")
    parser.add_argument("--json", action="store_true", help="print one object per row")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.images > CHUNK_IMAGES:
        parser.error(
            f"--images: got {options.images}, expected at most {CHUNK_IMAGES}, the images per chunk, because "
            "passes are counted per chunk"
        )
    if options.side is None:
        report(options)
        return
    torch.set_num_threads(1 if options.side == "ours" else options.cores)
    case = load_case(options)
    measured = (
        measure_ours(case, options.attacks, options.cores)
        if options.side == "ours"
        else measure_public(case, options.attacks)
    )
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
