"""AutoAttack and its parts, ours against the public implementation: verdicts, time, passes, memory.

    python benchmarks/autoattack.py embedded               # an adversarially trained network, full budgets
    python benchmarks/autoattack.py resnet18 --data FILE   # the CIFAR-10 ResNet-18 in pyautoattack

Needs the extra `oracle`. Every measurement runs in a process of its own, ours and theirs in turn, and counts
the processor seconds of one thread; the last one compares the ways to use two cores by the clock. Machines
are noisy: only ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
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

import allrounder as ar
from allrounder.attacks import Apgd, AutoAttack, Cascade, label_of
from allrounder.data.inputs.by_name import data_of
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import CHUNK, width_of
from allrounder.models.external import network_of
from allrounder.threats.threat import Threat

ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "aa")
RUN = Path("runs/demo/at-linf/seed-0")
"""The demonstration trains it too."""


@dataclass(frozen=True)
class Case:
    """A network, images, a threat, and the budgets of both sides."""

    model: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat
    steps: int = 100
    targets: int = 9
    queries: int = 5000


def case_of(options: argparse.Namespace) -> Case:
    """What is measured; the embedded network is trained once and kept."""
    if options.network == "embedded":
        ar.train(ar.Recipe.load("embedded/at-linf"), RUN, resume=True)
        data, model, budgets = ar.Run(RUN).recipe.read_data(), ar.load(RUN, "best"), {}
    else:
        spec = find_spec("pyautoattack")
        assert spec is not None and spec.origin is not None
        file = Path(spec.origin).parent / "examples" / "model_test.pt"
        data = data_of(options.data)
        model = network_of("resnet18", file, classes=10, shape=(3, 32, 32))
        budgets = {"steps": options.steps, "targets": options.targets, "queries": options.queries}
    rows = torch.arange(options.images)
    threat = Threat.parse(options.threat or ("Linf:0.1" if options.network == "embedded" else "Linf:1/255"))
    return Case(model, data.test.fetch(rows), data.test.labels[rows], threat, **budgets)


def ours(case: Case, attack: str, workers: int) -> dict[str, Any]:
    """Seconds, verdicts and passes of our evaluation, preflight and all."""
    budgets = {"steps": case.steps, "targets": case.targets, "queries": case.queries}
    stages = [Apgd(surrogate="dlr"), *AutoAttack().stages(case.threat.norm)]
    short = {label_of(stage): shortened(stage, budgets) for stage in stages}
    whole = Cascade(attacks=tuple(short[label_of(stage)] for stage in stages[1:]))
    probe = Probe(attack, whole if attack == "aa" else short[attack], case.threat)
    last: dict[tuple[str, str], ar.Note] = {}

    def watch(note: ar.Note) -> None:
        last[note.name, note.what] = note

    def width_at(what: str) -> int:
        name, lane = what.partition("@")[0], outcome.facts["lane"]
        return width_of(short[name], 10, case.x[0].numel(), lane) if name in short else lane

    begun, clock = time.process_time(), time.perf_counter()
    outcome = ar.evaluate(case.model, case.x, case.y, probes=[probe], workers=workers, progress=watch)
    return {
        "cpu": time.process_time() - begun,
        "wall": time.perf_counter() - clock,
        "standing": (outcome.predicted[str(probe)] == outcome.label).tolist(),
        "forwards": sum(width_at(what) * note.forwards for (_, what), note in last.items()),
        "backwards": sum(width_at(what) * note.backwards for (_, what), note in last.items()),
    }


def theirs(case: Case, attack: str) -> dict[str, Any]:
    """The same of the public implementation, all images in one batch, as it likes best."""
    from pyautoattack import AutoAttack as Public  # pyright: ignore[reportMissingImports]

    counted = Counted(case.model)
    side: Any = Public(counted, norm=case.threat.norm.name, eps=case.threat.eps, seed=0, device="cpu")
    if attack != "aa":
        side.attacks_to_run = [attack]
    if attack == "apgd-dlr":
        side.apgd.n_restarts = 1  # no standard version has it
    shorten(side, case)
    begun, clock = time.process_time(), time.perf_counter()
    found: Tensor = side.run_standard_evaluation(case.x, case.y, batch_size=len(case.x))[0]
    spent = {"cpu": time.process_time() - begun, "wall": time.perf_counter() - clock}
    with torch.no_grad():
        standing = (case.model(found).argmax(1) == case.y).tolist()
    return {**spent, "standing": standing, "forwards": counted.forwards, "backwards": counted.backwards}


def shortened(stage: Any, budgets: dict[str, int]) -> Any:
    """A stage of ours with other budgets, where it has them; an attack without targets gets none."""
    named = {field.name for field in fields(stage)} - (
        {"targets"} if not getattr(stage, "targets", 0) else set()
    )
    return replace(stage, **{name: budget for name, budget in budgets.items() if name in named})


def shorten(side: Any, case: Case) -> None:
    """Give the public attacks these budgets; APGD is made anew, as it plans its steps when it is made."""
    base = import_module("pyautoattack.autopgd_base")
    same = {"norm": side.norm, "eps": side.epsilon, "seed": side.seed, "device": "cpu", "logger": side.logger}
    for name, kind in (("apgd", base.APGDAttack), ("apgd_targeted", base.APGDAttack_targeted)):
        old = getattr(side, name)
        new = kind(side.model, n_iter=case.steps, n_restarts=old.n_restarts, **same)
        new.use_largereps = old.use_largereps
        setattr(side, name, new)
    side.fab.n_iter = case.steps
    side.apgd_targeted.n_target_classes = side.fab.n_target_classes = case.targets
    side.square.n_queries = case.queries


class Counted(nn.Module):
    """Counts images that go forwards, and gradients that come back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.backwards = model, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        """Answer, and count."""
        self.forwards += len(x)
        if x.requires_grad and torch.is_grad_enabled():
            x = x.clone()
            x.register_hook(self._count)
        return self.model(x)

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def measure(side: str, attack: str, cores: int) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    more = ["--side", side, "--attacks", attack, "--cores", str(cores)]
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], *more], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def report(options: argparse.Namespace) -> None:
    """Alternate the sides, and print a line for every attack."""
    case = case_of(options)
    budgets = f"{case.steps} steps, {case.targets} targets, {case.queries} queries"
    print(f"{options.network}, {case.threat}, {len(case.x)} images, {budgets}, torch {torch.__version__}")
    print(
        "          cores  standing %  broken by one only  seconds/image      times faster  passes/image  MB"
    )
    wanted = [(name, 1) for name in options.attacks.split(",") if name] + [("aa", 2)] * options.both_cores
    for attack, cores in wanted:
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
        for _ in range(options.rounds):
            for side, runs in found.items():
                runs.append(measure(side, attack, cores))
        clock = "cpu" if cores == 1 else "wall"
        seconds = [statistics.median(run[clock] for run in runs) for runs in found.values()]
        mine, other, n = found["ours"][0], found["theirs"][0], len(case.x)
        a, b = np.array(mine["standing"]), np.array(other["standing"])
        passes = [f"{run['forwards'] // n}+{run['backwards'] // n}" for run in (mine, other)]
        print(
            f"{attack:10}{cores:<7}{100 * a.mean():5.1f} {100 * b.mean():5.1f}"
            f"  {int((~a & b).sum()):8} {int((a & ~b).sum()):4}"
            f"     {seconds[0] / n:8.4f} {seconds[1] / n:8.4f}  {seconds[1] / seconds[0]:9.2f}"
            f"    {' '.join(passes)}  {mine['memory']} {other['memory']}",
            flush=True,
        )


def main() -> None:
    """Measure both sides, or be one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=("embedded", "resnet18"))
    parser.add_argument("--data", default="../shared/data/cifar10_test.npz", help="CIFAR-10 test images")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threat")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--steps", type=int, default=100, help="of the ResNet-18, as the next two")
    parser.add_argument("--targets", type=int, default=9)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--both-cores", action="store_true", help="also aa on two cores")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.images > CHUNK:
        parser.error(
            f"--images: got {options.images}, expected at most {CHUNK}: passes are counted anew after that"
        )
    if options.side is None:
        report(options)
        return
    torch.set_num_threads(1 if options.side == "ours" else options.cores)
    case = case_of(options)
    found = (
        ours(case, options.attacks, options.cores)
        if options.side == "ours"
        else theirs(case, options.attacks)
    )
    peak = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({**found, "memory": (peak[0] + (peak[1] if options.cores > 1 else 0)) // 1024}))


if __name__ == "__main__":
    main()
