"""Compare the golden results of this working tree with those of a commit: scripts/compare_with.py COMMIT.

Each tree runs its own golden cases with its own package, on this machine, both at the same time. Exits with 1
if a case differs, fails or is missing here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = "tests/golden"
FAILED = "failed: "


def run_git(*words: str) -> str:
    """Run git in this repository; return what it prints."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def check_out(commit: str, folder: Path) -> Generator[Path]:
    """Check a commit out into a temporary worktree, with golden cases if it has none."""
    tree = folder / "tree"
    run_git("worktree", "add", "--detach", str(tree), commit)
    try:
        if not (tree / GOLDEN).is_dir():
            add_cases(tree, folder)
        yield tree
    finally:
        run_git("worktree", "remove", "--force", str(tree))


def add_cases(tree: Path, folder: Path) -> None:
    """Put the first version of the golden cases into a tree from before them."""
    first = run_git("log", "--diff-filter=A", "--reverse", "--format=%H", "--", f"{GOLDEN}/record.py")
    if not first:
        sys.exit(f"compare_with.py: no commit adds {GOLDEN}; commit it first")
    archive = folder / "golden.tar"
    run_git("archive", "--output", str(archive), first.split()[0], GOLDEN)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)


def start_cases(tree: Path, out: Path, only: str) -> subprocess.Popen[str]:
    """Start the golden cases of a tree with the package of that tree."""
    paths = os.pathsep.join(map(str, (tree / "src", tree)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tests.golden.record", "--out", str(out), "--only", only]
    return subprocess.Popen(
        words, cwd=tree, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def read_results(running: subprocess.Popen[str], tree: Path, out: Path) -> dict[str, Any]:
    """Wait for the cases of a tree; check that its own package ran them, and return the results."""
    _, errors = running.communicate()
    if running.returncode != 0:
        sys.exit(f"{tree}: the golden cases failed:\n{errors}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="ascii"))
    package = Path(found["package"]).resolve()
    assert package.is_relative_to(tree.resolve()), f"{tree}: ran the package of {package}"
    return found


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Compare the results of two trees; return kind, case and detail of all that is not equal."""
    rows: list[tuple[str, str, str]] = []
    for name in sorted({**old, **new}):
        if name not in new:
            rows.append(("missing", name, "only in the commit"))
        elif new[name]["digest"].startswith(FAILED):
            rows.append(("failed", name, new[name]["digest"]))
        elif name not in old:
            rows.append(("new", name, "only in this tree"))
        elif difference := find_difference(old[name], new[name]):
            rows.append(("differs", name, difference))
    return rows


def find_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Compare two results bit for bit; return what differs, or None."""
    losses = [[float(loss).hex() for loss in result["losses"]] for result in (old, new)]
    if losses[0] != losses[1]:
        pairs = [(a, b) for a, b in zip(old["losses"], new["losses"], strict=False) if a.hex() != b.hex()]
        return f"loss {pairs[0][0]!r} became {pairs[0][1]!r}" if pairs else "another number of losses"
    if old["digest"] != new["digest"]:
        return f"digest {old['digest'][:48]} became {new['digest'][:48]}"
    return None


def main() -> None:
    """Compare, print a table, and exit."""
    parser = argparse.ArgumentParser(description="Compare golden results with those of a commit.")
    parser.add_argument("commit")
    parser.add_argument("--only", default="*", help="a pattern of case names, such as 'attacks/*'")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        with check_out(options.commit, folder) as tree:
            places = {tree: folder / "old.json", ROOT: folder / "new.json"}
            running = {of: start_cases(of, out, options.only) for of, out in places.items()}
            try:
                old, new = (read_results(running[of], of, out) for of, out in places.items())
            finally:
                for process in running.values():
                    process.kill()
    rows = compare(old["cases"], new["cases"])
    for kind, case, detail in rows:
        print(f"{kind:8} {case:48} {detail}")
    bad = [row for row in rows if row[0] != "new"]
    counts = f"{len(bad)} differ, fail or are missing, {len(rows) - len(bad)} are new"
    print(f"{len(new['cases'])} cases: {counts} ({old['seconds']:.0f} and {new['seconds']:.0f} s)")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
