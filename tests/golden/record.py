"""Run golden cases and record their results.

python -m tests.golden.record                    # all cases, into records/ARITHMETIC
python -m tests.golden.record --only 'attacks/*' # some cases; the others keep their records
python -m tests.golden.record --out FILE         # into one file, for scripts/compare_with.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

import allrounder
from tests.golden.cases import CASES
from tests.golden.results import Result, describe_arithmetic

FOLDER = Path(__file__).parent / "records"
Record = dict[str, Any]
"""The arithmetic of a machine, and the results by case."""


def find_family(name: str) -> str:
    """Return the part of a case's name that names its file."""
    return name.partition("/")[0]


def read_records(folder: Path = FOLDER) -> dict[str, dict[str, Record]]:
    """Read what was recorded, by folder of an arithmetic and family of cases."""
    return {
        one.name: {path.stem: json.loads(path.read_text(encoding="ascii")) for path in one.glob("*.json")}
        for one in sorted(folder.iterdir())
    }


def choose_record(records: dict[str, dict[str, Record]], name: str, arithmetic: dict[str, str]) -> Record:
    """Return the record of a case with this arithmetic; without one, the first record of the case."""
    families = [folder.get(find_family(name), {"cases": {}}) for folder in records.values()]
    candidates = [family for family in families if name in family["cases"]]
    return next((record for record in candidates if record["arithmetic"] == arithmetic), candidates[0])


def run_case(name: str, *, keep_going: bool) -> Result:
    """Run a case; with `keep_going`, a case that fails says so in its digest."""
    try:
        return CASES[name]()
    except Exception as error:
        if not keep_going:
            raise
        return {"losses": [], "digest": f"failed: {type(error).__name__}: {error}"}


def write_records(results: dict[str, Result], arithmetic: dict[str, str]) -> None:
    """Write a file for every family; cases that were not run keep their results, ones that are gone go.

    Every arithmetic has its folder, named after the processor's instructions and, if that name is taken by
    another arithmetic, a part of its digest.
    """
    folders = read_records()
    known = [
        name
        for name, folder in folders.items()
        if any(r["arithmetic"] == arithmetic for r in folder.values())
    ]
    name = arithmetic["cpu"].lower()
    name = known[0] if known else name if name not in folders else f"{name}-{arithmetic['computations'][:8]}"
    (FOLDER / name).mkdir(exist_ok=True)
    for family in sorted({find_family(case) for case in results}):
        record = folders.get(name, {}).get(family)
        old: dict[str, Result] = record["cases"] if record and record["arithmetic"] == arithmetic else {}
        every = old | {case: result for case, result in results.items() if find_family(case) == family}
        kept = {case: every[case] for case in sorted(every) if case in CASES}
        text = json.dumps({"arithmetic": arithmetic, "cases": kept}, indent=1)
        (FOLDER / name / f"{family}.json").write_text(f"{text}\n", encoding="ascii")


def main(words: Iterable[str] | None = None) -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description="Run golden cases and record their results.")
    parser.add_argument(
        "--only", action="append", help="a pattern of names, such as 'attacks/*'; may be repeated"
    )
    parser.add_argument("--out", type=Path, help="one file for all results, in place of the records")
    options = parser.parse_args(None if words is None else list(words))
    torch.set_num_threads(1)
    begin = time.monotonic()
    names = [name for name in CASES if any(fnmatch(name, pattern) for pattern in options.only or ["*"])]
    results = {name: run_case(name, keep_going=options.out is not None) for name in names}
    seconds = time.monotonic() - begin
    arithmetic = describe_arithmetic()
    if options.out is None:
        write_records(results, arithmetic)
    else:
        facts = {"package": allrounder.__file__, "arithmetic": arithmetic, "seconds": seconds}
        options.out.write_text(json.dumps({**facts, "cases": results}), encoding="ascii")
    print(f"{len(results)} cases in {seconds:.0f} s")


if __name__ == "__main__":
    main()
