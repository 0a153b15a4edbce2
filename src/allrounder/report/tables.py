"""Tables of one or several outcomes: Markdown, LaTeX, CSV, JSON, and the JSON of RobustBench's model list."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from allrounder.report.footnotes import Outcomes, flags, footnotes
from allrounder.report.outcome import JOINED, NATURAL, Facts, Outcome
from allrounder.report.shift_tables import SHIFTED
from allrounder.report.statistics import percent

SAID = {"worst": "worst", "mean": "mean (the papers' Union)"}
DERIVED = (
    "Worst: correct under every threat of the attack at once (the true union); mean: the average over "
    "its threats (what Generalist++ calls Union)."
)
NORMS = {"Linf": r"$\ell_\infty$", "L2": r"$\ell_2$", "L1": r"$\ell_1$"}
SPECIAL = {sign: rf"\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}

MODEL = {
    "link": str,
    "name": str,
    "authors": str,
    "additional_data": bool,
    "number_forward_passes": int,
    "dataset": str,
    "venue": str,
    "architecture": str,
    "reported": str,
}
"""What RobustBench asks of a model that no outcome knows; "reported" is the paper's own robust percent."""
MAYBE = {"external": str, "footnote": str}
PROTOCOL = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""How many images RobustBench measures on."""


def render(
    outcomes: Outcomes,
    style: str = "markdown",
    *,
    intervals: bool = True,
    about: Facts | None = None,
    threat: str | None = None,
) -> str:
    """One row for every named outcome, in the style markdown, latex, csv or json; or else robustbench, or
    every corruption or perturbation by itself: corruptions, perturbations, corruptions-csv.

    `intervals` puts 95% intervals beside the percents of Markdown and LaTeX; CSV and JSON always have them.
    `about` and `threat` are for `robustbench`, which takes one outcome.
    """
    styles: dict[str, Callable[[Table], str]] = {
        "markdown": lambda table: markdown(table, intervals=intervals),
        "latex": lambda table: latex(table, intervals=intervals),
        "csv": comma_separated,
        "json": as_json,
    }
    if style == "robustbench" and len(outcomes) == 1:
        return robustbench(next(iter(outcomes.values())), about or {}, threat)
    if style in SHIFTED and outcomes and threat is None:
        return SHIFTED[style](outcomes)
    if style not in styles or not outcomes or threat is not None:
        several = ", ".join((*SHIFTED, *styles))
        known = f"one or more in {several}, or one in robustbench, which alone takes a threat"
        raise ValueError(
            f"table: got {len(outcomes)} outcomes, style {style!r}, threat {threat}; expected {known}"
        )
    return styles[style](Table.of(outcomes))


@final
@dataclass(frozen=True)
class Cell:
    """An accuracy and its 95% interval, in [0, 1]."""

    share: float
    low: float
    high: float


@final
@dataclass(frozen=True, eq=False)
class Table:
    """All numbers of some outcomes: columns are (probe, None) or (attack, "worst" or "mean")."""

    outcomes: Outcomes
    columns: Sequence[tuple[str, str | None]]
    rows: Sequence[Sequence[Cell | None]]

    @classmethod
    def of(cls, outcomes: Outcomes) -> Table:
        """Every probe of any outcome; worst and mean are given for outcomes that have all its threats."""
        none = np.empty(0, np.int64)
        whole = Outcome(none, {name: none for outcome in outcomes.values() for name in outcome.predicted})
        columns = whole.columns()

        def cell(outcome: Outcome, attack: str, threat: str | None) -> Cell | None:
            if not set(whole.behind(attack, threat)) <= set(outcome.predicted):
                return None
            return Cell(outcome.accuracy(attack, threat), *outcome.interval(attack, threat))

        rows = [[cell(outcome, *column) for column in columns] for outcome in outcomes.values()]
        return cls(outcomes, columns, rows)

    def labels(self) -> list[str]:
        """Short names of the columns."""
        return [name if how is None else f"{name} {how}" for name, how in self.columns]

    def notes(self, intervals: bool) -> list[str]:
        """What stands below the table, a sentence a line."""
        first = f"Percent of images classified correctly{', with 95% intervals' if intervals else ''}."
        derived = [DERIVED] if any(how in JOINED for _, how in self.columns) else []
        return [first, *derived, *footnotes(self.outcomes)]

    def written(self, best: str, second: str, interval: str) -> list[list[str]]:
        """Percents with two decimals, the best and the second best of every column in these forms."""
        columns: list[list[str]] = []
        for cells in zip(*self.rows, strict=True):
            shown = [percent(cell.share) for cell in cells if cell is not None]
            order = sorted(set(shown), key=float, reverse=True)
            # Where all are the same, none is best.
            marks = dict(zip(order, (best, second), strict=False)) if len(order) > 1 else {}
            columns.append([_written(cell, marks, interval) for cell in cells])
        return [[name, *row] for name, row in zip(self.outcomes, zip(*columns, strict=True), strict=True)]


def _written(cell: Cell | None, marks: Mapping[str, str], interval: str) -> str:
    if cell is None:
        return "-"
    share, low, high = (percent(number) for number in (cell.share, cell.low, cell.high))
    return marks.get(share, "{}").format(share) + interval.format(low, high)


def markdown(table: Table, *, intervals: bool) -> str:
    """A table for a document, with what a reader must know below it."""
    names = [name if how is None else f"{name} {SAID.get(how, how)}" for name, how in table.columns]
    rows = table.written("**{}**", "<ins>{}</ins>", " ({}-{})" if intervals else "")
    rule = [":--", *["--:"] * len(names)]
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (["model", *names], rule, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([*lines, "", *table.notes(intervals)]) + "\n"


def latex(table: Table, *, intervals: bool) -> str:
    """A table for a paper, which needs the package booktabs; the attacks stand above their threats."""
    above, below = ["model"], [""]
    for name, how in table.columns:
        attack, _, threat = name.partition("@")
        norm, _, budget = threat.partition(":")
        above.append(escaped(attack))
        below.append(
            escaped(SAID.get(how, how))
            if how
            else f"{NORMS.get(norm, escaped(norm))} {escaped(budget)}".strip()
        )
    interval = r" {{\scriptsize ({}--{})}}" if intervals else ""
    rows = table.written(r"\textbf{{{}}}", r"\underline{{{}}}", interval)
    lines = [" & ".join(cells) + r" \\" for cells in (above, below)[: 1 + any(below)]]
    lines += [r"\midrule", *(" & ".join([escaped(name), *cells]) + r" \\" for name, *cells in rows)]
    notes = [escaped(note) for note in table.notes(intervals)]
    begin = rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    end = [r"\bottomrule", r"\end{tabular}", "", r"{\footnotesize", *notes, r"\par}"]
    return "\n".join([begin, r"\toprule", *lines, *end]) + "\n"


def escaped(text: str) -> str:
    """A text with the signs that LaTeX would not print as they are."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def comma_separated(table: Table) -> str:
    """Shares in [0, 1] with the ends of their intervals, in full precision."""
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    ends = [f"{label}{end}" for label in table.labels() for end in ("", " low", " high")]
    sheet.writerow(["model", *ends, "n", "seed", "selected_on", "flags"])
    for (name, outcome), row in zip(table.outcomes.items(), table.rows, strict=True):
        numbers = [n for cell in row for n in ((cell.share, cell.low, cell.high) if cell else ("", "", ""))]
        told = [outcome.facts.get(key, "") for key in ("seed", "selected_on")]
        sheet.writerow([name, *numbers, len(outcome), *told, "; ".join(flags(outcome))])
    return text.getvalue()


def as_json(table: Table) -> str:
    """Shares in [0, 1] in full precision, accuracy after every stage, and all facts."""
    rows: list[dict[str, Any]] = []
    for (name, outcome), row in zip(table.outcomes.items(), table.rows, strict=True):
        cells = {
            label: {"accuracy": cell.share, "low": cell.low, "high": cell.high}
            for label, cell in zip(table.labels(), row, strict=True)
            if cell is not None
        }
        after = {probe: outcome.after(probe) for probe in outcome.stage}
        told: dict[str, Any] = {
            "name": name,
            "n": len(outcome),
            "results": cells,
            "after": after,
            "flags": flags(outcome),
        }
        if shifted := outcome.perturbations():
            told["flip_rates"] = {title: flips for title, (_, flips) in shifted.items()}
        rows.append({**told, "facts": dict(outcome.facts)})
    return json.dumps({"columns": table.labels(), "rows": rows}, indent=2) + "\n"


def robustbench(outcome: Outcome, about: Facts, threat: str | None = None) -> str:
    """The file of a model in RobustBench's list: AutoAttack under one threat, percents as texts.

    `about` holds what MODEL and MAYBE name. Where the outcome is not what the list expects (fewer images,
    weights selected on the test set) the footnote says so.
    """
    probes = outcome.probes("aa") if threat is None else outcome.behind("aa", threat)
    if len(probes) != 1 or threat in JOINED:
        found = ", ".join(outcome.probes("aa")) or f"no aa among {', '.join(outcome.predicted)}"
        raise ValueError(f"robustbench: got {found}, expected aa under one threat; choose one with threat")
    missing = [key for key in MODEL if about.get(key) in (None, "")]
    if missing:
        raise ValueError(f"robustbench: missing {', '.join(missing)}; tell them in about")
    for key, given in about.items():
        wanted = (MODEL | MAYBE).get(key)
        if type(given) is not wanted:
            expected = wanted.__name__ if wanted else f"only {', '.join(MODEL | MAYBE)}"
            raise ValueError(f"robustbench: {key}: got {given!r}, expected {expected}")
        if key in ("reported", "external") and not re.fullmatch(r"\d{1,3}\.\d\d", given):
            raise ValueError(f'robustbench: {key}: got {given!r}, expected a percent such as "48.90"')
    if "extra" in outcome.facts and not about["additional_data"]:
        told = f"the network was trained on {outcome.facts['extra']}"
        raise ValueError(f"robustbench: additional_data: got false, expected true: {told}")
    full = PROTOCOL.get(about["dataset"].lower().replace("-", ""), len(outcome))
    remarks = [
        about.get("footnote", ""),
        "" if full == len(outcome) else f"Measured on {len(outcome)} images, not {full}.",
        "Weights selected on the test set." if outcome.facts.get("selected_on") == "test" else "",
    ]
    (probe,) = probes
    told = {key: about[key] for key in MODEL} | {
        "eps": probe.partition(":")[2],
        "clean_acc": percent(outcome.accuracy(NATURAL)),
        "autoattack_acc": percent(outcome.accuracy(probe)),
        "unreliable": bool(flags(outcome, probe.partition("@")[2])),
    }
    told |= {"external": about["external"]} if "external" in about else {}
    told |= {"footnote": " ".join(filter(None, remarks))} if any(remarks) else {}
    return json.dumps(told, indent=2) + "\n"
