"""The command that combines trained networks: dial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from typer import Argument, BadParameter, Option

from allrounder.cli.index import check_choice
from allrounder.config.interrupts import delay_interrupts

CRITERIA = ("worst", "mean")
STATISTICS = ("adversarial", "natural", "both")
Runs = Annotated[
    list[Path],
    Argument(metavar="RUN...", help="A finished run with several learners, or several finished runs."),
]
Points = Annotated[int, Option(min=2, help="Mixtures of every two networks, including each of them alone.")]
SharesText = Annotated[
    str | None,
    Option("--shares", help="Also measure, and with --out save, the mixture linf=0.5,natural=0.5."),
]
Pick = Annotated[
    list[str] | None,
    Option(
        help="Choose the most robust mixture with at least this natural accuracy, natural=0.86; or the most "
        "accurate one with linf=0.4, worst=0.3 or mean=0.4. Repeat for several conditions.",
    ),
]
By = Annotated[str, Option(help="Robust accuracy of the front and of --pick: worst, or mean over threats.")]
AttackName = Annotated[
    str | None,
    Option("--attack", help="An attack such as pgd-20. Default: that of the validation; with --outputs, cw."),
]
Threats = Annotated[
    list[str] | None,
    Option("--threat", help="A threat such as Linf:8/255; repeat for several. Default: those of the runs."),
]
NumImages = Annotated[int | None, Option("--n", min=1, help="Held-out images to measure on. Default: all.")]
StatisticsName = Annotated[
    str | None,
    Option(
        "--statistics",
        help="Training images that batch-norm statistics of every mixture are re-estimated on: adversarial, "
        "natural, or both, half of each. Default: adversarial.",
    ),
]
Outputs = Annotated[
    bool,
    Option(
        "--outputs", help="Mix the outputs of a natural and a robust run, in this order, not the weights."
    ),
]
Tolerance = Annotated[
    float,
    Option(min=0.0, max=1.0, help="With --outputs: the robust accuracy that the mixture may lose, 0 to 1."),
]
Workers = Annotated[int, Option(min=1, help="Processes that share the images, each with one thread.")]
Folder = Annotated[Path | None, Option("--out", help="Save the chosen network as a run in this folder.")]


@final
@dataclass(frozen=True, kw_only=True)
class DialCommand:
    """All options of `dial`, under the same names."""

    runs: list[Path]
    points: int
    shares: str | None
    pick: list[str] | None
    by: str
    attack: str | None
    threat: list[str] | None
    n: int | None
    statistics: str | None
    outputs: bool
    tolerance: float
    workers: int
    out: Path | None


def dial(
    runs: Runs,
    points: Points = 5,
    shares: SharesText = None,
    pick: Pick = None,
    by: By = "worst",
    attack: AttackName = None,
    threat: Threats = None,
    n: NumImages = None,
    statistics: StatisticsName = None,
    outputs: Outputs = False,
    tolerance: Tolerance = 0.02,
    workers: Workers = 1,
    out: Folder = None,
) -> None:
    """Mix trained networks, without training: measure mixtures on held-out images, and save one of them.

    Mixes the weights of a run's learners, or the global weights of several runs, on a grid of shares. Every
    point is stored in RUN/dial when it is measured; call again to continue. With --outputs, mixes the outputs
    of two networks instead, which doubles the cost of a prediction.
    """
    command = DialCommand(**locals())
    check_choice(by, CRITERIA, "--by")
    if statistics is not None:
        check_choice(statistics, STATISTICS, "--statistics")
    if pick and shares:
        raise BadParameter("both choose a mixture; give one of them", param_hint="--pick and --shares")
    if outputs and (pick or shares):
        raise BadParameter("choose a mixture of weights; leave them out", param_hint="--pick and --shares")
    if outputs and statistics:
        raise BadParameter(
            "every network keeps its own with --outputs; leave it out", param_hint="--statistics"
        )
    if outputs and (len(runs) != 2 or out is None):
        raise BadParameter("expected a natural run, a robust run and --out FOLDER", param_hint="--outputs")
    if out is not None and not (pick or shares or outputs):
        raise BadParameter("names no network to save; add --pick or --shares", param_hint="--out")
    with delay_interrupts():
        from allrounder.cli.run_dial import run_dial

    run_dial(command)
