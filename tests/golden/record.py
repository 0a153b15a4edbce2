"""Run golden cases and record their results.

python -m tests.golden.record                    # all cases, into the files of this folder
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

FOLDER = Path(__file__).parent


def find_family(name: str) -> str:
    """Return the part of a case's name that names its file."""
    return name.partition("/")[0]


def read_records(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Read what was recorded, by family: the arithmetic, and the results by case."""
    return {path.stem: json.loads(path.read_text(encoding="ascii")) for path in sorted(folder.glob("*.json"))}


def run_case(name: str, *, keep_going: bool) -> Result:
    """Run a case; with `keep_going`, a case that fails says so in its digest."""
    try:
        return CASES[name]()
    except Exception as error:
        if not keep_going:
            raise
        return {"losses": [], "digest": f"failed: {type(error).__name__}: {error}"}


def write_records(results: dict[str, Result], arithmetic: dict[str, str]) -> None:
    """Write a file for every family; cases that were not run keep their results, ones that are gone go."""
    before = read_records()
    for family in sorted({find_family(name) for name in results}):
        old: dict[str, Result] = before.get(family, {}).get("cases", {})
        if old and before[family]["arithmetic"] != arithmetic and not set(old) <= set(results):
            raise SystemExit(f"{family}: was recorded with another arithmetic; record all of its cases")
        every = old | {name: result for name, result in results.items() if find_family(name) == family}
        kept = {name: every[name] for name in sorted(every) if name in CASES}
        text = json.dumps({"arithmetic": arithmetic, "cases": kept}, indent=1)
        (FOLDER / f"{family}.json").write_text(f"{text}\n", encoding="ascii")


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
