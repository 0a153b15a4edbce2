"""The command that hands a trained network to other programs: export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from typer import Argument, BadParameter, Option

from allrounder.cli.evaluate import Which
from allrounder.cli.index import check_choice
from allrounder.config.interrupts import delay_interrupts

ATTACK, NUM_IMAGES = "pgd-20", 64
"""The attack and the number of images that an ONNX file is compared on, unless others are given."""
FORMATS = ("torch", "onnx", "robustbench", "hub")
RunFolder = Annotated[Path, Argument(metavar="RUN", help="A run folder, also one that dial saved.")]
To = Annotated[
    str,
    Option(
        help="torch: a state dict and a Python module; onnx: a file that is compared with torch; "
        "robustbench: the files of RobustBench; hub: a folder for the Hugging Face Hub.",
        metavar="FORMAT",
    ),
]
Folder = Annotated[
    Path | None, Option("--out", help="The folder to create. Default: RUN/export/FORMAT-WEIGHTS.")
]
About = Annotated[
    Path | None,
    Option(
        help="With robustbench: a TOML file with link, name, authors, venue and reported.", metavar="FILE"
    ),
]
Threats = Annotated[
    list[str] | None,
    Option(
        "--threat",
        help="With onnx: a threat such as Linf:8/255, repeat for several; default: those of the run. With "
        "robustbench: the one whose numbers are written, or its norm.",
    ),
]
AttackName = Annotated[
    str | None,
    Option("--attack", help=f"With onnx: the attack whose images are compared, on torch. Default: {ATTACK}."),
]
NumImages = Annotated[
    int | None, Option("--n", min=1, help=f"With onnx: test images to compare on. Default: {NUM_IMAGES}.")
]
DataName = Annotated[
    str | None,
    Option("--data", help="With onnx: other images, a dataset by name, an .npz file, or a folder."),
]


@final
@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """All options of `export`, under the same names."""

    run: Path
    to: str
    which: str
    out: Path | None
    about: Path | None
    threat: list[str] | None
    attack: str | None
    n: int | None
    data: str | None


def export(
    run: RunFolder,
    to: To,
    which: Which = "best",
    out: Folder = None,
    about: About = None,
    threat: Threats = None,
    attack: AttackName = None,
    n: NumImages = None,
    data: DataName = None,
) -> None:
    """Export a trained network, so that it works without Allrounder.

    Every export is compared with the network of the run before its folder appears. An existing folder is
    never changed. Its model.py loads back: allrounder eval --model FOLDER/model.py:load --data NAME
    --threat Linf:8/255.
    """
    command = ExportCommand(**locals())
    check_choice(to, FORMATS, "--to")
    if about is not None and to != "robustbench":
        raise BadParameter("belongs to --to robustbench; leave it out", param_hint="--about")
    if threat and to not in ("onnx", "robustbench"):
        raise BadParameter("belongs to --to onnx and robustbench; leave it out", param_hint="--threat")
    for option, value in (("--attack", attack), ("--n", n), ("--data", data)):
        if value is not None and to != "onnx":
            raise BadParameter("belongs to --to onnx; leave it out", param_hint=option)
    with delay_interrupts():
        from allrounder.cli.run_export import run_export

    run_export(command)
