"""The commands that examine a network: eval and doctor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, cast, final

import torch
import typer
from torch import nn

from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.search import Search
from allrounder.certainty import percent
from allrounder.display import Bars, grid, out, say
from allrounder.doctor import doctor
from allrounder.errors import RunError
from allrounder.evaluation import BUDGETS, OUTCOME, Size, evaluate, subset
from allrounder.footnotes import footnotes
from allrounder.outcome import Outcome
from allrounder.pool import Note
from allrounder.probes import SUITES, Probe, chosen, suite
from allrounder.subject import Subject, subject_of
from allrounder.tables import SAID, render
from allrounder.types import device_of
from allrounder.values import nearest

WORTHWHILE = 16
"""Images that a further process should have to do."""

STYLES = ("markdown", "latex", "csv", "json", "robustbench")
SIZES = ", ".join(f"{name} {count or 'all'}" for name, count in BUDGETS.items())
What = Annotated[
    str | None, typer.Argument(metavar="RUN_OR_FILE", help="A run folder, or a file of weights with --model.")
]
Which = Annotated[str, typer.Option(help="Weights of a run: best, last, a learner's name, or NAME@best.")]
Model = Annotated[
    str | None, typer.Option(help='A network of ours by name, or "package.module:factory".', metavar="NAME")
]
Weights = Annotated[
    Path | None, typer.Option(help="Its weights: .safetensors, or a .pt state dict (tensors alone are read).")
]
Key = Annotated[str | None, typer.Option("--weights-key", help="Which weights, where a file holds several.")]
Images = Annotated[
    str | None, typer.Option("--data", help="A dataset by name, an .npz file, or a folder of images.")
]
Seed = Annotated[int, typer.Option(help="Of attacks, and of the choice of images.")]


SuiteName = Annotated[str | None, typer.Option("--suite", help=f"Columns of a table: {', '.join(SUITES)}.")]
Threats = Annotated[list[str] | None, typer.Option(help="Such as Linf:8/255; repeat for several.")]
Attacks = Annotated[list[str] | None, typer.Option(help="Such as pgd-20, cw, apgd-t; by default aa.")]
Budget = Annotated[str, typer.Option(help=f"How many images: {SIZES}. Attacks are never shortened.")]
Number = Annotated[int | None, typer.Option("--n", min=1, help="How many images, as a number.")]
Lane = Annotated[int | None, typer.Option(min=1, help="Images of one pass; by default by their size.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes of one thread; by default where it pays.")
]
Folder = Annotated[Path | None, typer.Option("--out", help="Where results go; for a run, its folder eval.")]
Keep = Annotated[bool, typer.Option("--save-examples", help="Save the images that fool the network.")]
Force = Annotated[bool, typer.Option("--force", help="Go on where the preflight would stop.")]
Style = Annotated[str | None, typer.Option("--table", help=f"One of {', '.join(STYLES)}.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the numbers alone.")]


def eval_(
    what: What = None,
    suite_name: SuiteName = None,
    threat: Threats = None,
    attack: Attacks = None,
    budget: Budget = "standard",
    n: Number = None,
    which: Which = "best",
    model: Model = None,
    weights: Weights = None,
    key: Key = None,
    data: Images = None,
    seed: Seed = 0,
    lane: Lane = None,
    workers: Workers = None,
    folder: Folder = None,
    keep_examples: Keep = False,
    force: Force = False,
    style: Style = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a network under attack; call again to go on after an interruption, or with more.

    Every image that an attack is done with is kept in the folder, and is never done twice.
    """
    _check_known("--budget", budget, BUDGETS)
    _check_known("--table", style or STYLES[0], STYLES)
    about = subject_of(what, which=which, model=model, weights=weights, key=key, data=data)
    probes = asked(about, suite_name, threat or [], attack or [])
    if keep_examples and folder is None and about.folder is None:
        raise typer.BadParameter("there is no folder to save in; give --out", param_hint="--save-examples")
    where, images = folder or about.folder, len(subset(about.data.test, n or BUDGETS[budget], seed))
    if model is not None:
        sys.path.insert(0, str(Path.cwd()))  # where workers find the module of a factory, too
    shares = workers or default_workers(about.model, probes, images)
    if shares == 1 and device_of(about.model)[0].type == "cpu":
        torch.set_num_threads(1)  # as the workers have, so that their number changes nothing
    with Watch(shares, quiet) as watch:
        watch.say(f"{about.name}: {images} images of {len(about.data.test)}")
        outcome = evaluate(
            about.model,
            about.data,
            probes=probes,
            out=where,
            seed=seed,
            budget=cast(Size, budget),
            n=n,
            lane=lane,
            workers=shares,
            keep_examples=keep_examples,
            check="note" if force else "stop",
            about=about.about,
            progress=watch.note,
        )
    if where is not None:
        (where / "table.md").write_text(render({about.name: outcome}), encoding="utf-8")
    show(outcome, about.name, style)
    if where is not None and not quiet:
        say(f"results: {where}/")


def doctor_(
    what: What = None,
    which: Which = "best",
    model: Model = None,
    weights: Weights = None,
    key: Key = None,
    data: Images = None,
) -> None:
    """Examine a network and its images, and say what would make an evaluation worthless."""
    about = subject_of(what, which=which, model=model, weights=weights, key=key, data=data)
    rows = subset(about.data.test, 64, 0)
    x, y = about.data.test.fetch(rows), about.data.test.labels[rows]
    diagnosis = doctor(about.model, x.to(*device_of(about.model)), y, classes=len(about.data.classes))
    say(f"{about.name}: {len(rows)} images, {diagnosis.classes or 'unknown'} classes")
    for line in diagnosis.lines():
        say(line)
    if not diagnosis.ok:
        raise typer.Exit(1)


def asked(
    about: Subject, suite_name: str | None, threats: list[str], attacks: list[str]
) -> tuple[Probe, ...]:
    """The probes that options name: a suite or attacks, under the threats named or those of the run."""
    if not (against := threats or list(about.threats)):
        raise typer.BadParameter(f"{about.name}: no threat is known; give one, such as --threat Linf:8/255")
    try:
        columns = suite(suite_name, against) if suite_name is not None else ()
        return chosen(columns, threats=against if attacks or not columns else (), attacks=attacks)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_known(option: str, got: str, known: Iterable[str]) -> None:
    if got not in known:
        said = f"{got}: expected one of {', '.join(known)}{nearest(got, known)}"
        raise typer.BadParameter(said, param_hint=option)


def default_workers(model: nn.Module, probes: tuple[Probe, ...], images: int) -> int:
    """As many as there are cores, where searches make it worth to start processes; one on an accelerator."""
    searches = any(isinstance(a, Search) for p in probes for a in stages_of(p.attack, p.threat))
    if not searches or device_of(model)[0].type != "cpu":
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), images // WORTHWHILE))


@final
class Watch:
    """Bars for the attacks that are under way, and a line for every one that is done."""

    def __init__(self, workers: int, quiet: bool):
        """A bar for each process."""
        names = [""] if workers == 1 else [f"worker {number}" for number in range(1, workers + 1)]
        self.bars = None if quiet else Bars(out, names)
        self.begun: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Watch:
        if self.bars is not None:
            self.bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.__exit__(*error)

    def say(self, text: str) -> None:
        """A line above the bars."""
        if self.bars is not None:
            self.bars.say(text)

    def note(self, note: Note) -> None:
        """Hear how far an attack is."""
        if self.bars is None:
            return
        begun = self.begun.setdefault((note.name, note.what), time.monotonic())
        left = note.done - note.broken
        self.bars.show(note.name, note.done, note.total, f"{note.what} {note.broken} broken")
        if note.done == note.total:
            passes = f"{note.forwards} forward and {note.backwards} backward passes"
            spent = f"{time.monotonic() - begun:.1f} s" + (f", {passes}" if note.forwards else "")
            self.bars.say(f"{note.name} {note.what}: {note.broken} broken, {left} left ({spent})".strip())


def show(outcome: Outcome, name: str, style: str | None) -> None:
    """Print the accuracies with their intervals, what came of every stage, and what to know of them."""
    if style is not None:
        about = {"name": name, **outcome.facts.get("robustbench", {})}
        try:
            say(render({name: outcome}, style, about=about))
        except ValueError as error:
            how = f'in Python, Outcome.load(FOLDER / "{OUTCOME}").table("{style}", about={{...}}) takes them'
            raise RunError(f"{error}; {how}") from None
        return
    rows: list[tuple[str, str, str]] = []
    for attack, threat in outcome.columns():
        low, high = outcome.interval(attack, threat)
        named = f"{attack} {SAID[threat]}" if threat in SAID else attack
        rows.append((named, percent(outcome.accuracy(attack, threat)), f"{percent(low)} - {percent(high)}"))
    out.print(grid(("percent correct", "accuracy", "95% interval"), rows))
    for probe in outcome.stage:
        stages = outcome.facts["stages"].get(probe, ())
        if len(stages) > 1:
            after = zip(stages, outcome.after(probe), strict=True)
            told = ", ".join(f"{percent(share)} after {stage}" for stage, share in after)
            say(f"{probe}: {told}")
    for finding in outcome.facts.get("findings", ()):
        say(f"preflight: {finding}")
    for line in footnotes({name: outcome}):
        say(line)
