"""Tables of studies: several networks for every row, one for each seed. A pure function of outcomes."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from allrounder.report.footnotes import flags, footnotes
from allrounder.report.outcome import JOINED, Outcome
from allrounder.report.statistics import Paired, percent
from allrounder.report.tables import DERIVED, SAID, escaped

Column: TypeAlias = tuple[str, str | None]
LEVEL = 0.05
DIFFERS = {"markdown": "\u2020", "latex": r"$^\dagger$", "text": "*"}
"""What marks a number that differs from the reference's."""
MARKS = {
    "markdown": ("**{}**", "<ins>{}</ins>"),
    "latex": (r"\textbf{{{}}}", r"\underline{{{}}}"),
    "text": ("{}", "{}"),
}


@final
@dataclass(frozen=True, eq=False)
class Cell:
    """Accuracies of a row in a column, one for each seed, in [0, 1]; and what a paper says, in percent."""

    shares: tuple[float, ...]
    interval: tuple[float, float]
    """The 95% interval over images, of the only seed or of the first."""
    paper: float | None = None
    differs: bool = False
    """From the reference, image by image."""

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.shares)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, with n - 1; none of one seed."""
        return statistics.stdev(self.shares) if len(self.shares) > 1 else None

    def text(self) -> str:
        """The percent, with the deviation over seeds, or with the interval over images where there is one."""
        if self.spread is not None:
            return f"{percent(self.mean)} +- {percent(self.spread)}"
        return f"{percent(self.mean)} ({'-'.join(percent(end) for end in self.interval)})"


@final
@dataclass(frozen=True, eq=False)
class Results:
    """Outcomes of a study by row, one for each seed that is finished."""

    outcomes: Mapping[str, Mapping[int, Outcome]]
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, dict[str, float]])
    cost: Mapping[str, str] = field(default_factory=dict[str, str])
    """Forward and backward passes of an image over the whole run, by row: "132/132"."""
    reference: str = ""
    source: str = ""
    missing: Sequence[str] = ()
    """Trainings that are not finished or not evaluated."""

    def columns(self) -> list[Column]:
        """Natural, every probe, worst and mean of attacks with several threats."""
        found = [outcome for seeds in self.outcomes.values() for outcome in seeds.values()]
        return list(dict.fromkeys(column for outcome in found for column in outcome.columns()))

    def base(self) -> str:
        """The row that others are compared with."""
        return self.reference if self.reference in self.outcomes else next(iter(self.outcomes), "")

    def cells(self) -> dict[str, list[Cell | None]]:
        """All numbers; a cell that no outcome of its row has is empty."""
        columns, differs = self.columns(), self._differing()
        return {
            label: [self._cell(label, column, (label, column) in differs) for column in columns]
            for label in self.outcomes
        }

    def _cell(self, label: str, column: Column, differs: bool) -> Cell | None:
        having = [outcome for outcome in self.outcomes[label].values() if column in outcome.columns()]
        if not having:
            return None
        shares = tuple(outcome.accuracy(*column) for outcome in having)
        return Cell(
            shares, having[0].interval(*column), self.paper.get(label, {}).get(key_of(column)), differs
        )

    def paired(self, label: str, column: Column) -> Paired | None:
        """A row against the reference, image by image, all seeds together; none where they do not fit."""
        mine, others = self.outcomes[label], self.outcomes.get(self.base(), {})
        seeds = [seed for seed in mine if seed in others]
        if label == self.base() or column[1] == "mean" or not seeds:
            return None
        try:
            tables = [mine[seed].mcnemar(others[seed], *column) for seed in seeds]
        except (ValueError, KeyError):
            return None  # other images, or other probes
        parts = zip(*((t.both, t.only_self, t.only_other, t.neither) for t in tables), strict=True)
        return Paired(*(sum(part) for part in parts))

    def _differing(self) -> set[tuple[str, Column]]:
        """Where a row differs from the reference, by Holm's method over all comparisons of the table."""
        found: dict[tuple[str, Column], float] = {}
        for label in self.outcomes:
            for column in self.columns():
                paired = self.paired(label, column)
                if paired is not None:
                    found[label, column] = paired.p
        differing: set[tuple[str, Column]] = set()
        for rank, key in enumerate(sorted(found, key=lambda key: found[key])):
            if found[key] > LEVEL / (len(found) - rank):
                break
            differing.add(key)
        return differing

    def notes(self, style: str = "text") -> list[str]:
        """What a reader must know, a sentence a line."""
        several = {
            f"{label}, seed {seed}": o for label, of in self.outcomes.items() for seed, o in of.items()
        }
        seeds = sorted({seed for of in self.outcomes.values() for seed in of})
        spread = f"mean +- standard deviation over seeds {', '.join(map(str, seeds))}"
        lines = [
            f"Percent of images classified correctly: {spread if len(seeds) > 1 else 'with 95% intervals'}."
        ]
        lines += [DERIVED] if any(how in JOINED for _, how in self.columns()) else []
        if any(cell and cell.differs for row in self.cells().values() for cell in row):
            lines.append(
                f'{DIFFERS[style]}: differs from "{self.base()}" by a paired test over images, all seeds '
                f"together (McNemar, Holm over the table, level {LEVEL}); it knows nothing of the chance "
                "between trainings."
            )
        if self.cost:
            lines.append("Cost: forward/backward passes of every training image over the whole run, at most.")
        if any(self.paper.values()):
            lines.append(f"Paper: {self.source or 'as reported'}, in percent; not measured here.")
        lines += footnotes(several) if several else []
        lines += [f"{name}: {said}" for name, o in several.items() for said in o.facts.get("findings", ())]
        return lines + ([f"MISSING: {'; '.join(self.missing)}."] if self.missing else [])


def key_of(column: Column) -> str:
    """A column as the papers' numbers name it."""
    return column[0] if column[1] is None else f"{column[0]} {column[1]}"


def sheet(results: Results, style: str = "text") -> tuple[list[str], list[list[str]]]:
    """Header and rows of texts, the best and second best of every column marked."""
    columns, cells, (best, second) = results.columns(), results.cells(), MARKS[style]
    papers = [any(cell and cell.paper is not None for cell in of) for of in zip(*cells.values(), strict=True)]
    head, rows = ["row"], {label: [label] for label in cells}
    for number, (name, how) in enumerate(columns):
        said = SAID.get(how or "", how) if style != "text" else how
        head.append(
            narrow(name.replace("@", " ") if style == "text" else name, style) + (f" {said}" if said else "")
        )
        shown = {label: cell for label, row in cells.items() if (cell := row[number]) is not None}
        order = sorted({percent(cell.mean) for cell in shown.values()}, key=float, reverse=True)
        marks = dict(zip(order, (best, second), strict=False)) if len(order) > 1 else {}
        for label, row in rows.items():
            cell = shown.get(label)
            sign = DIFFERS[style] if cell is not None and cell.differs else ""
            told = "-" if cell is None else marks.get(percent(cell.mean), "{}").format(cell.text()) + sign
            row.append(narrow(told, style))
        if papers[number]:
            head.append("paper")
            for label, row in rows.items():
                said = shown[label].paper if label in shown else None
                row.append("-" if said is None else f"{said:.2f}")
    if results.cost:
        head.append("cost")
        for label, row in rows.items():
            row.append(str(results.cost.get(label, "-")))
    return head, list(rows.values())


def narrow(text: str, style: str) -> str:
    """On a screen, what stands beside a number or a name goes below it."""
    return text.replace(" ", "\n", 1) if style == "text" else text


def render(results: Results, style: str = "markdown") -> str:
    """The table as text: markdown, latex, csv or json."""
    known = {"markdown": _markdown, "latex": _latex, "csv": _csv, "json": _json}
    if style not in known:
        raise ValueError(f"table: got style {style!r}, expected one of {', '.join(known)}")
    return known[style](results)


def _markdown(results: Results) -> str:
    head, rows = sheet(results, "markdown")
    rule = [":--", *["--:"] * (len(head) - 1)]
    lines = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (head, rule, *rows)
    ]
    return "\n".join([*lines, "", *results.notes("markdown")]) + "\n"


def _latex(results: Results) -> str:
    head, rows = sheet(results, "latex")
    body = [
        " & ".join([escaped(row[0]), *(cell.replace("+-", r"$\pm$") for cell in row[1:])]) for row in rows
    ]
    lines = [
        r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
        r"\toprule",
        " & ".join(map(escaped, head)) + r" \\",
    ]
    lines += [r"\midrule", *(line + r" \\" for line in body), r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*lines, r"{\footnotesize", *map(escaped, results.notes()), r"\par}"]) + "\n"


def _csv(results: Results) -> str:
    """One line for every training, shares in [0, 1] in full precision."""
    text, columns = io.StringIO(), results.columns()
    page = csv.writer(text, lineterminator="\n")
    page.writerow(["row", "seed", *map(key_of, columns), "n", "cost", "flags"])
    for label, seeds in results.outcomes.items():
        for seed, outcome in seeds.items():
            having = outcome.columns()
            numbers = [outcome.accuracy(*column) if column in having else "" for column in columns]
            told = len(outcome), results.cost.get(label, ""), "; ".join(flags(outcome))
            page.writerow([label, seed, *numbers, *told])
    return text.getvalue()


def _json(results: Results) -> str:
    rows: list[dict[str, Any]] = []
    for label, cells in results.cells().items():
        numbers = {
            key_of(column): {
                "mean": cell.mean,
                "deviation": cell.spread,
                "seeds": list(cell.shares),
                "paper": cell.paper,
                "p": None if (paired := results.paired(label, column)) is None else paired.p,
            }
            for column, cell in zip(results.columns(), cells, strict=True)
            if cell is not None
        }
        seeds = {str(seed): dict(outcome.facts) for seed, outcome in results.outcomes[label].items()}
        rows.append({"row": label, "results": numbers, "cost": results.cost.get(label), "facts": seeds})
    told = {
        "reference": results.base(),
        "rows": rows,
        "missing": list(results.missing),
        "notes": results.notes(),
    }
    return json.dumps(told, indent=2) + "\n"
