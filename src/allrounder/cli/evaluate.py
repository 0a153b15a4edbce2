"""The commands that examine a network: eval and doctor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from torch import nn

from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.search.base import Search
from allrounder.cli.display import Observer, grid, out, say
from allrounder.cli.target import Subject, subject_among, subject_of
from allrounder.config.fields import nearest
from allrounder.distributed import World
from allrounder.errors import RunError
from allrounder.evaluation.assemble import stored
from allrounder.evaluation.evaluate import BUDGETS, OUTCOME, Size, evaluate, subset
from allrounder.evaluation.preflight import doctor
from allrounder.evaluation.probes import SUITES, Probe, chosen, suite
from allrounder.evaluation.shifts import shifts_of
from allrounder.report.footnotes import footnotes
from allrounder.report.outcome import Outcome
from allrounder.report.shift_tables import SHIFTED
from allrounder.report.statistics import percent
from allrounder.report.tables import SAID, render
from allrounder.system.files import write_text
from allrounder.types import device_of

WORTHWHILE = 16
"""Images that a further process should have to do."""

STYLES = ("markdown", "latex", "csv", "json", "robustbench", *SHIFTED)
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
Ood = Annotated[
    str,
    typer.Option(
        help="Images changed without an adversary: c (corruptions), c:5 (at severity 5), p (perturbations), "
        "fog@c, ...; several with commas. Attacks are then only run if they are named.",
        metavar="WHAT",
    ),
]
OodData = Annotated[
    Path | None, typer.Option(help="A folder with CIFAR-10-C or -P files; else from the cache, or made here.")
]
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
    ood: Ood = "",
    ood_data: OodData = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a network under attack; call again to go on after an interruption, or with more.

    Nothing is done twice. Printed is what this call asks for, kept is all that was asked of the same images.
    Processes that torchrun started share the images, without --workers.
    """
    _check_known(("--budget", budget, BUDGETS), ("--table", style or STYLES[0], STYLES))
    with World.opened() as world:
        about = subject_among(world, what, which=which, model=model, weights=weights, key=key, data=data)
        probes = asked(about, suite_name, threat or [], attack or [], ood)
        where = _home(folder or about.folder, keep_examples)
        images = len(subset(about.data.test, n or BUDGETS[budget], seed))
        if model is not None:
            sys.path.insert(0, str(Path.cwd()))  # where workers find the module of a factory, too
        shares = _shares(workers or (1 if world.size > 1 else None), about.model, probes, images, ood)
        before = stored(where / OUTCOME) if where and world.chief else None
        with Observer(shares, quiet or not world.chief) as watch:
            watch.say(f"{about.name}: {images} images of {len(about.data.test)}{_split(world)}")
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
                ood=ood,
                ood_data=ood_data,
                world=world,
                progress=watch.note,
            )
        if world.chief:  # who speaks for all
            _report(outcome, where, before, about.name, style, quiet)


def _report(
    outcome: Outcome, where: Path | None, before: Outcome | None, name: str, style: str | None, quiet: bool
) -> None:
    """Write the tables of the folder, if there is one, and print what was asked for."""
    if where is not None:
        write_tables(where, name, stored(where / OUTCOME) or outcome)
    show(outcome, name, style)
    if where is not None and not quiet:
        _tell_of_files(where, before, outcome)


def write_tables(where: Path, name: str, outcome: Outcome) -> None:
    """The table of the evaluation, and those of every corruption and perturbation if there are any."""
    write_text(where / "table.md", render({name: outcome}))
    for what, found in (("corruptions", outcome.corruptions()), ("perturbations", outcome.perturbations())):
        if found:
            write_text(where / f"{what}.md", render({name: outcome}, what))
        else:
            (where / f"{what}.md").unlink(missing_ok=True)  # of a call for other images


def _tell_of_files(where: Path, before: Outcome | None, asked: Outcome) -> None:
    """Where all results are, what they have besides what is shown, and what they have no more."""
    whole = stored(where / OUTCOME) or asked
    if more := len(whole.predicted) - len(asked.predicted):
        say(f"{OUTCOME} and table.md also have what was asked before ({more} probes)")
    gone = 0 if before is None else len(before.predicted.keys() - whole.predicted.keys())
    if gone and before is not None:
        why = "of another set" if before.facts["rows"] == whole.facts["rows"] else f"on {len(before)} images"
        say(f"{OUTCOME} no longer has {gone} probes {why}; ask for them again, and nothing is done twice")
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
    about: Subject, suite_name: str | None, threats: list[str], attacks: list[str], ood: str = ""
) -> tuple[Probe, ...]:
    """The probes that options name: a suite or attacks, under the threats named or those of the run.

    Where changed images are asked for and no attack is named, there are none.
    """
    try:
        if shifts_of(ood) and not (suite_name or threats or attacks):
            return ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ood") from None
    if not (against := threats or list(about.threats)):
        raise typer.BadParameter(f"{about.name}: no threat is known; give one, such as --threat Linf:8/255")
    try:
        columns = suite(suite_name, against) if suite_name is not None else ()
        return chosen(columns, threats=against if attacks or not columns else (), attacks=attacks)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_known(*options: tuple[str, str, Iterable[str]]) -> None:
    for option, got, known in options:
        if got not in known:
            said = f"{got}: expected one of {', '.join(known)}{nearest(got, known)}"
            raise typer.BadParameter(said, param_hint=option)


def default_workers(model: nn.Module, probes: tuple[Probe, ...], images: int, ood: str = "") -> int:
    """As many as there are cores, where searches or hundreds of changed copies of every image make it worth
    to start processes; one on an accelerator."""
    searches = any(isinstance(a, Search) for p in probes for a in stages_of(p.attack, p.threat))
    if not (searches or ood) or device_of(model)[0].type != "cpu":
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), images // WORTHWHILE))


def _home(folder: Path | None, keep_examples: bool) -> Path | None:
    if keep_examples and folder is None:
        raise typer.BadParameter("there is no folder to save in; give --out", param_hint="--save-examples")
    return folder


def _shares(workers: int | None, model: nn.Module, probes: tuple[Probe, ...], images: int, ood: str) -> int:
    shares = workers or default_workers(model, probes, images, ood)
    if shares == 1 and device_of(model)[0].type == "cpu":
        torch.set_num_threads(1)  # as the workers have, so that their number changes nothing
    return shares


def _split(world: World) -> str:
    return f", in {world.size} processes; the bar is that of rank 0" if world.size > 1 else ""


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
        named = attack if threat is None else f"{attack} {SAID.get(threat, threat)}"
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
