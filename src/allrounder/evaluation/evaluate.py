"""Measure a network: natural accuracy and accuracy under attack, stored example by example.

evaluate(model, x, y, norm="Linf", eps=8 / 255)                                          # AutoAttack
evaluate(model, data, threats=["Linf:8/255", "L2:128/255"], attacks=["pgd-20", "aa"], out="runs/eval")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, final, get_args

import torch

from allrounder.attacks.autoattack import stages_of
from allrounder.config.fields import nearest
from allrounder.data.base import Array, Split
from allrounder.data.inputs.coerce import Given, as_split
from allrounder.data.splits import balanced
from allrounder.distributed import World
from allrounder.errors import Interrupted
from allrounder.evaluation.assemble import identity, joined, outcome_of, save_examples, settings, stored, told
from allrounder.evaluation.distributed import Shared, check_alone
from allrounder.evaluation.preflight import doctor
from allrounder.evaluation.probes import Budget, Probe, chosen
from allrounder.evaluation.runner import Assessor, Tick, key_of
from allrounder.evaluation.shifts import Shifted
from allrounder.evaluation.store import Ledger, opened
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.report.reliability import flags
from allrounder.system.processes import Note, Send, check_can_travel, run_jobs
from allrounder.system.signals import Stop, stop_on_signals
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Labels, device_of

LANES = ((1024, 64), (3072, 32), (49_152, 16), (1 << 62, 8))
"""Images of a pass on a CPU by the numbers in an image, up to each bound; elsewhere eight times as many.

Every pass has this shape, because another one changes bits. Small ones fill up better, large ones cost less
around the network.
"""
CHECKED = 16
"""Images that the preflight looks at."""
OUTCOME = "outcome.safetensors"
BUDGETS: dict[str, int | None] = {"smoke": 20, "quick": 200, "standard": 1000, "full": None}
"""Images of an evaluation. No budget shortens an attack: with fewer steps it would need another name."""
Size: TypeAlias = Literal["smoke", "quick", "standard", "full"]
Check: TypeAlias = Literal["stop", "note", "skip"]


def evaluate(
    model: Classifier,
    data: Given,
    y: Array | None = None,
    *,
    probes: Sequence[Probe | str] = (),
    norm: str | None = None,
    eps: Budget | Sequence[Budget] | None = None,
    threats: Sequence[Threat | str] = (),
    attacks: Sequence[str] = (),
    out: str | Path | None = None,
    seed: int = 0,
    budget: Size = "full",
    n: int | None = None,
    lane: int | None = None,
    workers: int = 1,
    keep_examples: bool = False,
    check: Check = "stop",
    about: Facts | None = None,
    ood: str | Sequence[str] = (),
    ood_data: str | Path | None = None,
    world: World | None = None,
    progress: Send = lambda note: None,
) -> Outcome:
    """Evaluate any callable from images in [0, 1] to logits; only images classified correctly are attacked.

    The data is a dataset (its test split), a split, images and labels, or a loader of such batches; `n`, or
    the budget, chooses a class-balanced part of it. What to run is given as probes, as attacks under threats,
    or as a norm with one or several eps, and is AutoAttack unless attacks are named.

    In a folder `out`, every image that an attack is done with is remembered: call again after an
    interruption, with more images or attacks, and nothing is done twice. Returned is what was asked for; the
    file OUTCOME there also has what was asked of the same images before. `workers` are processes of one
    thread each; at one thread, the outcome is the same for any number. `keep_examples` saves images that
    fooled the network. The preflight of `doctor` stops on severe findings (check = "stop"), only notes them
    in the facts ("note"), or is not made ("skip"). `about` joins the facts. `ood` adds images that were
    changed without an adversary, such as "c:5,p" (see `ood`), from the folder `ood_data` or made here.
    Processes that torchrun started share the images if each gives its `world`; rank 0 alone writes.
    """
    world = world or World.alone()
    _check_options(budget, check, lane, workers, homeless=keep_examples and out is None)
    check_alone(world, workers, keep_examples)
    split, wanted = as_split(data, y), chosen(probes, norm=norm, eps=eps, threats=threats, attacks=attacks)
    shifted = Shifted.of(ood, split, ood_data)
    check_can_travel(workers, network=model, data=split, probes=wanted)
    rows = subset(split, BUDGETS[budget] if n is None else n, seed)
    width = lane or lane_for(model, split)
    plan = {"seed": seed, "lane": width, "threads": 1 if workers > 1 else torch.get_num_threads()}
    facts = {**plan, "budget": budget if n is None else f"{n} images", **told(wanted, rows)}
    if check != "skip":
        facts |= preflight(model, split, rows, wanted, stop=check == "stop")
    # Within a training nobody asks which network it was.
    known = identity(model, split) if check != "skip" or out is not None or workers * world.size > 1 else {}
    facts |= {key: known[key] for key in known if key in ("network", "data")} | shifted.facts()
    world.agree("the evaluation", {**known, **facts})
    plan = {**known, **plan, "examples": keep_examples}
    with ExitStack() as stack:
        folder = _home(stack, out if world.chief else None, workers, plan)
        job = Job(model, split, wanted, seed, width, keep_examples, folder, out is not None, shifted)
        return _carried_out(job, rows, {**(about or {}), **facts}, workers, world, progress)


def _carried_out(job: Job, rows: Labels, facts: Facts, workers: int, world: World, progress: Send) -> Outcome:
    """Settle what is asked, and keep it where there is a folder to last."""
    ledger = job.shared(rows, world, progress) if world.size > 1 else job.run(rows, workers, progress)
    outcome = job.outcome(ledger, rows, facts)
    if job.lasting and job.folder is not None:
        if job.keep:
            save_examples(job.folder, ledger, job.probes, outcome, rows)
        _save(outcome, job.folder)
    return outcome


def _home(stack: ExitStack, out: str | Path | None, workers: int, plan: Facts) -> Path | None:
    """Where lines are kept: the folder that is given, or one for a while where processes share them."""
    if out is not None:
        stack.enter_context(opened(Path(out), plan))
        return Path(out)
    return Path(stack.enter_context(TemporaryDirectory(prefix="allrounder-"))) if workers > 1 else None


def _save(outcome: Outcome, folder: Path) -> None:
    """Add to what earlier calls found out about the same images: it is kept for every choice of images, and
    that of the last call is found at once."""
    kept = folder / "outcomes" / f"{outcome.facts['rows']}.safetensors"
    kept.parent.mkdir(exist_ok=True)
    earlier = stored(kept)
    whole = outcome if earlier is None else joined(earlier, outcome)
    whole = replace(whole, facts={**whole.facts, "flags": flags(whole)})
    whole.save(kept)
    whole.save(folder / OUTCOME)


def _check_options(budget: str, check: str, lane: int | None, workers: int, *, homeless: bool) -> None:
    if homeless:
        raise ValueError("keep_examples: got no folder, expected one to save them in; give out=...")
    for name, got, known in (("budget", budget, list(BUDGETS)), ("check", check, get_args(Check))):
        if got not in known:
            raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(known)}{nearest(got, known)}")
    for name, number in (("lane", lane), ("workers", workers)):
        if number is not None and number < 1:
            raise ValueError(f"{name}: got {number}, expected 1 or more")


def lane_for(model: Classifier, split: Split) -> int:
    """The width of a lane unless another is wanted."""
    size = split.fetch(torch.arange(1)).numel()
    width = next(width for bound, width in LANES if size <= bound)
    return width if device_of(model)[0].type == "cpu" else 8 * width


def subset(split: Split, count: int | None, seed: int) -> Labels:
    """The positions of the images to evaluate, rising: all, or a balanced part that larger parts contain."""
    if count is None or count >= len(split):
        return torch.arange(len(split))
    return balanced(split, count, seed).sort().values


def preflight(
    model: Classifier, split: Split, rows: Labels, probes: Sequence[Probe], *, stop: bool
) -> dict[str, Any]:
    """What the doctor finds on a few images, and the budget of every probe for that many classes."""
    some = rows[:: max(len(rows) // CHECKED, 1)][:CHECKED]
    place = device_of(model)
    x, y = split.fetch(some).to(*place), split.labels[some].to(place[0])
    diagnosis = doctor(model, x, y)
    if stop:
        diagnosis.raise_if_bad()
    classes = diagnosis.classes
    found = {"findings": [str(finding) for finding in diagnosis.findings]}
    return found | ({} if classes is None else {"classes": classes, "attacks": settings(probes, classes)})


@final
@dataclass(frozen=True, eq=False)
class Job:
    """An evaluation that any number of processes can share."""

    model: Classifier
    split: Split
    probes: tuple[Probe, ...]
    seed: int
    width: int
    keep: bool
    folder: Path | None
    lasting: bool = True
    """Whether the folder is there for the next call, if there is one."""
    shifted: Shifted = field(default_factory=Shifted)

    def run(self, rows: Labels, workers: int, progress: Send) -> Ledger:
        """Settle all images; the ledger then has every line."""
        try:
            if workers == 1:
                return self.settle("", progress, rows)
            shares = {f"worker {k + 1}": rows[k::workers] for k in range(min(workers, len(rows)))}
            run_jobs(
                {name: partial(self.settle, rows=share) for name, share in shares.items()}, workers, progress
            )
        except Interrupted as stop:
            raise self._lost(stop) from None
        return Ledger(len(self.split), self.folder)

    def shared(self, rows: Labels, world: World, progress: Send) -> Ledger:
        """Settle all images together with the other ranks of a world; every ledger then has every line."""
        shared, stopped = Shared(world, len(self.split), self.folder, self.attacks()), None
        with stop_on_signals() as stop:
            try:
                shared.begin()
                self._settle(shared.ledger, "", progress, rows[world.rank :: world.size], stop, shared.look)
            except Interrupted as asked:
                stopped = self._lost(asked)
            shared.end(stopped, stop)
        return shared.ledger

    def settle(self, name: str, send: Send, rows: Labels) -> Ledger:
        """Settle some images in this process; a signal stops it after what is settled was saved."""
        ledger = Ledger(len(self.split), self.folder)
        with stop_on_signals() as stop:
            self._settle(ledger, name, send, rows, stop, lambda signal: signal)
        return ledger

    def _settle(
        self,
        ledger: Ledger,
        name: str,
        send: Send,
        rows: Labels,
        stop: Stop,
        look: Callable[[str | None], str | None],
    ) -> None:
        """`look` gets the signal that came, if any, and says why to stop, if at all."""

        def report(tick: Tick) -> None:
            asked = tick.passes.forwards, tick.passes.backwards
            send(Note(name, tick.done, tick.total, tick.what, tick.broken, *asked))
            if (reason := look(stop.signal)) is not None:
                raise Interrupted(f"{reason}: stopped, call again to continue")

        if len(rows) == 0:  # more processes than images
            return
        assessor = Assessor(
            self.model, self.split, ledger, seed=self.seed, width=self.width, keep=self.keep, report=report
        )
        assessor.assess(rows, self.probes)
        self.shifted.settle(assessor, rows)

    def attacks(self) -> list[str]:
        """What lines are filed under."""
        stages = [(p, a, k) for p in self.probes for k, a in enumerate(stages_of(p.attack, p.threat))]
        changed = [key for shift in self.shifted.shifts for key in self.shifted.keys(shift).values()]
        return list(dict.fromkeys([NATURAL, *(key_of(*stage) for stage in stages), *changed]))

    def _lost(self, stop: Interrupted) -> Interrupted:
        """What to say when it was stopped."""
        if self.lasting:
            return stop
        return Interrupted(f"{str(stop).partition(',')[0]}, nothing was saved: give out=...")

    def outcome(self, ledger: Ledger, rows: Labels, facts: Facts) -> Outcome:
        """What the ledger says of these images, with doubts about it."""
        outcome = outcome_of(ledger, self.probes, rows, self.split.labels[rows], facts)
        outcome = replace(outcome, predicted={**outcome.predicted, **self.shifted.predicted(ledger, rows)})
        return replace(outcome, facts={**facts, "flags": flags(outcome)})
