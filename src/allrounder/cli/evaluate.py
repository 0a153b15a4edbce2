"""The commands that examine a network: eval and doctor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from typer import Argument, Exit, Option

from allrounder.cli.index import check_choice, read_index
from allrounder.config.interrupts import delay_interrupts

INDEX = read_index()
BUDGETS = ", ".join(f"{name} {count or 'all'}" for name, count in INDEX["budgets"].items())
CLASS_TABLE_STYLES = ("markdown", "latex")
"""The styles that can print several tables; `--table` needs one of them, or none."""

Target = Annotated[
    str | None, Argument(metavar="RUN_OR_FILE", help="A run folder, or a weights file with --model.")
]
Which = Annotated[str, Option(help="Weights of a run: best, last, a learner's name, or NAME@best.")]
Model = Annotated[
    str | None,
    Option(help='A network by its name, or "package.module:factory", or "FILE.py:factory".', metavar="NAME"),
]
WeightsFile = Annotated[
    Path | None, Option(help="Its weights: .safetensors, or a .pt state dict (only tensors are read).")
]
WeightsKey = Annotated[
    str | None, Option("--weights-key", help="The state dict to use, if a file holds several.")
]
Normalisation = Annotated[
    str | None,
    Option(
        "--normalise",
        help="Constants that the network of --model expects and its file lacks: imagenet, cifar10, ..., or "
        "MEAN/STD such as 0.5/0.25.",
        metavar="NAME",
    ),
]
DataName = Annotated[
    str | None, Option("--data", help="A dataset by name, an .npz file, or a folder of images.")
]
Seed = Annotated[int, Option(help="Random seed of the attacks and of the choice of images.")]
SuiteName = Annotated[str | None, Option("--suite", help=f"A set of attacks: {', '.join(INDEX['suites'])}.")]
Threats = Annotated[list[str] | None, Option(help="A threat such as Linf:8/255; repeat for several.")]
Attacks = Annotated[
    list[str] | None, Option(help="An attack such as pgd-20, cw or apgd-t; repeat for several. Default: aa.")
]
Source = Annotated[
    str | None,
    Option(
        help="Craft on this network and evaluate the images on the target: a run folder (its best weights), "
        "or a weights file with --source-model. Default attack: pgd-20.",
        metavar="RUN_OR_FILE",
    ),
]
SourceModel = Annotated[
    str | None, Option(help="The network of --source. Default: that of --model.", metavar="NAME")
]
SourceNormalisation = Annotated[
    str | None,
    Option(
        "--source-normalise",
        help="Constants of the network of --source, as for --normalise. Default: none with --source-model, "
        "else those of --normalise.",
        metavar="NAME",
    ),
]
Eot = Annotated[
    int | None, Option(min=1, help="Gradients to average in every step of pgd or apgd, for random networks.")
]
Budget = Annotated[str, Option(help=f"Number of images: {BUDGETS}. Attacks are never shortened.")]
NumImages = Annotated[int | None, Option("--n", min=1, help="Number of images, instead of --budget.")]
BatchSize = Annotated[int | None, Option(min=1, help="Images per forward pass. Default: by image size.")]
Workers = Annotated[
    int | None, Option(min=1, help="Processes, each with one thread. Default: as many as pay off.")
]
Folder = Annotated[Path | None, Option("--out", help="Results folder. Default: the folder eval of the run.")]
KeepExamples = Annotated[
    bool, Option("--save-examples", help="Save the adversarial images that fool the network.")
]
Force = Annotated[bool, Option("--force", help="Continue where the preflight would stop.")]
NoMaskingCheck = Annotated[
    bool,
    Option(
        "--no-masking-check",
        help="Do not look for masked gradients with a short FAB and Square on 50 images, which is done for "
        "threats without these attacks.",
    ),
]
Style = Annotated[str | None, Option(help=f"One of {', '.join(INDEX['table_styles'])}.")]
Tables = Annotated[
    list[str] | None,
    Option(
        "--table",
        help=f"Also print a table of single classes: {', '.join(INDEX['class_tables'])}; repeat for several, "
        "or separate them by commas.",
        metavar="NAME",
    ),
]
Ood = Annotated[
    str,
    Option(
        help="Corrupted images: c (corruptions), c:5 (at severity 5), p (perturbations), fog@c, ...; "
        "separate several by commas. Attacks then run only if they are named.",
        metavar="WHAT",
    ),
]
OodData = Annotated[
    Path | None, Option(help="A folder with CIFAR-10-C or -P files. Default: the cache, or generated images.")
]


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options that `eval` and `doctor` share, under the same names."""

    target: str | None = None
    which: str = "best"
    model: str | None = None
    weights: Path | None = None
    key: str | None = None
    normalise: str | None = None
    data: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class DoctorCommand(TargetOptions):
    """All options of `doctor`, under the same names."""

    threat: list[str] | None


@final
@dataclass(frozen=True, kw_only=True)
class EvalCommand(TargetOptions):
    """All options of `eval`, under the same names."""

    suite: str | None
    threat: list[str] | None
    attack: list[str] | None
    source: str | None
    source_model: str | None
    source_normalise: str | None
    eot: int | None
    budget: str
    n: int | None
    seed: int
    batch_size: int | None
    workers: int | None
    folder: Path | None
    keep_examples: bool
    force: bool
    no_masking_check: bool
    style: str | None
    tables: list[str]
    ood: str
    ood_data: Path | None


def eval_(
    target: Target = None,
    suite: SuiteName = None,
    threat: Threats = None,
    attack: Attacks = None,
    source: Source = None,
    source_model: SourceModel = None,
    source_normalise: SourceNormalisation = None,
    eot: Eot = None,
    budget: Budget = "standard",
    n: NumImages = None,
    which: Which = "best",
    model: Model = None,
    weights: WeightsFile = None,
    key: WeightsKey = None,
    normalise: Normalisation = None,
    data: DataName = None,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    workers: Workers = None,
    folder: Folder = None,
    keep_examples: KeepExamples = False,
    force: Force = False,
    no_masking_check: NoMaskingCheck = False,
    style: Style = None,
    tables: Tables = None,
    ood: Ood = "",
    ood_data: OodData = None,
) -> None:
    """Evaluate a network under attack; call again to resume, or to add attacks or images.

    Finished attacks are reused. Prints this call's probes; the results folder keeps every probe run on these
    images. Processes started by torchrun share the images; do not combine them with --workers.
    """
    tables = [name for text in tables or () for name in text.split(",")]
    command = EvalCommand(**locals())
    for name in tables:
        check_choice(name, INDEX["class_tables"], "--table")
    check_choice(budget, INDEX["budgets"], "--budget")
    if style is not None:
        check_choice(style, CLASS_TABLE_STYLES if tables else INDEX["table_styles"], "--style")
    with delay_interrupts():
        from allrounder.cli.run_evaluate import run_evaluate

    run_evaluate(command)


def doctor_(
    target: Target = None,
    which: Which = "best",
    model: Model = None,
    weights: WeightsFile = None,
    key: WeightsKey = None,
    normalise: Normalisation = None,
    data: DataName = None,
    threat: Threats = None,
) -> None:
    """Check a network and its images for faults that would make an evaluation meaningless.

    Under the threats of the options, or those of the run, also check for masked gradients.
    """
    command = DoctorCommand(**locals())
    with delay_interrupts():
        from allrounder.cli.run_doctor import run_doctor

    if not run_doctor(command):
        raise Exit(1)
