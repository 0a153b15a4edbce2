"""A campaign of random faults against trainings, evaluations and studies.

    python benchmarks/faults.py
    python benchmarks/faults.py --trials 20 --seed 7
    python benchmarks/faults.py --only damage
    python benchmarks/faults.py --seed 0 --trial 17

Every trial does one fault to a small work and continues it. It must end with the results of an undisturbed
work, bit for bit, or with an error that names the cause and loses nothing. Everything else is a failure, and
the exit code is then 1. The trials of a seed are always the same; moments in seconds depend on the speed of
the machine.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: copies of a process with threads may hang

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from fault_kinds import DESCRIPTIONS, KINDS
from fault_processes import Failure, Skip, kill_all, prepare_copies
from fault_trials import Bench, Trial

TRAININGS = ("training", "training, 2 ranks")
EVALUATIONS = ("evaluation", "evaluation, 2 workers")
COPIES = (*TRAININGS, *EVALUATIONS, "study, 2 workers")
COMMANDS = (
    *("training (command)", "training --workers 2 (command)", "evaluation --workers 2 (command)"),
    "sweep --workers 2 (command)",
)
CASES = (
    *(("signal", name) for name in (*3 * COPIES, *COMMANDS)),
    *(("stop", name) for name in COPIES[1:]),
    *(("operation", name) for name in 3 * COPIES),
    *((kind, name) for kind in ("torn-write", "disk-error") for name in 2 * COPIES),
    *((kind, name) for kind in ("full-disk", "read-only", "clock") for name in COPIES),
    *(("damage", name) for name in (*3 * COPIES, *4 * ("training, cached data",))),
    *(("two-at-once", name) for name in (*COPIES, COMMANDS[0])),
)
"""The pairs of a fault and a work; each is tried once in every round, in another order."""
MEMORY_DISK = "/dev/shm"
"""A disk in memory, on which no trial waits until its files are flushed."""
RESULTS = ("identical", "clear error", "failures", "skipped")


def choose_case(seed: int, number: int) -> tuple[str, str]:
    """Return the fault and the work of a trial."""
    cases = list(CASES)
    random.Random(f"{seed} round {number // len(cases)}").shuffle(cases)
    return cases[number % len(cases)]


def select_trials(seed: int, trials: int, only: str | None, trial: int | None) -> list[int]:
    """Return the numbers of the trials to run."""
    if trial is not None:
        return [trial]
    numbers: Iterator[int] = (n for n in count() if only in (None, choose_case(seed, n)[0]))
    return [next(numbers) for _ in range(trials)]


def run_trial(bench: Bench, seed: int, number: int, keep: bool) -> tuple[str, str, bool]:
    """Run a trial; return its result, a description, and whether the fault came before the work ended."""
    kind, name = choose_case(seed, number)
    reference = bench.reference(name)
    folder = bench.folder / f"trial-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)
    rng = random.Random(f"{seed} trial {number}")
    trial = Trial(rng, bench.victims[name], reference, folder / "folder", folder / "logs")
    result, problem = "failures", ""
    try:
        result = KINDS[kind](trial)
    except Skip as reason:
        result, problem = "skipped", f": {reason}"
    except Failure as failure:
        problem = f": {failure}"
    except Exception as error:  # what a command left cannot be read
        problem = f": {type(error).__name__}: {error}"
    finally:
        kill_all()
    if result != "failures" and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return result, f"{'; '.join(trial.facts)}{problem}", trial.happened


def show(counts: Counter[tuple[str, str, str]]) -> str:
    """Return two Markdown tables of the results: by fault and work, and by fault."""
    rows = sorted({(kind, name) for kind, name, _ in counts}, key=CASES.index)
    lines = _start_table("work")
    for kind, name in rows:
        lines.append(_format_row(kind, name, [counts[kind, name, result] for result in RESULTS]))
    lines += ["", *_start_table("what happens")]
    for kind in dict.fromkeys(kind for kind, _ in rows):
        lines.append(_format_row(kind, DESCRIPTIONS[kind], _add(counts, kind)))
    return "\n".join([*lines, _format_row("all", "", _add(counts, None))])


def _start_table(second: str) -> list[str]:
    return [f"| fault | {second} | trials | {' | '.join(RESULTS)} |", "| --- | --- |" + " --: |" * 5]


def _format_row(kind: str, text: str, numbers: list[int]) -> str:
    return f"| {kind} | {text} | {sum(numbers)} | {' | '.join(map(str, numbers))} |"


def _add(counts: Counter[tuple[str, str, str]], kind: str | None) -> list[int]:
    """Add the numbers of trials with each result, of one kind of fault or of all."""
    return [
        sum(number for key, number in counts.items() if key[2] == result and kind in (None, key[0]))
        for result in RESULTS
    ]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, help="only this kind of fault")
    parser.add_argument("--trial", type=int, help="only the trial with this number")
    parser.add_argument("--keep", type=Path, help="a new folder for the files of all trials, which are kept")
    return parser.parse_args()


def main() -> int:
    """Run the trials; return the exit code."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends the processes of a trial
    memory = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    folder = options.keep or Path(tempfile.mkdtemp(prefix="allrounder-faults-", dir=memory))
    folder.mkdir(parents=True, exist_ok=True)
    prepare_copies(folder.resolve() / "first")
    bench = Bench(folder.resolve())
    counts: Counter[tuple[str, str, str]] = Counter()
    numbers = select_trials(options.seed, options.trials, options.only, options.trial)
    begin, late = time.monotonic(), 0
    try:
        for done, number in enumerate(numbers, start=1):
            kind, name = choose_case(options.seed, number)
            start = time.monotonic()
            result, text, happened = run_trial(bench, options.seed, number, options.keep is not None)
            counts[kind, name, result] += 1
            late += not happened
            passed, took = time.monotonic() - begin, time.monotonic() - start
            minutes, seconds = divmod(round(passed / done * (len(numbers) - done)), 60)
            word = "FAILURE" if result == "failures" else result
            eta = f"{done}/{len(numbers)}, ETA {minutes}:{seconds:02}"
            print(f"[{eta}] {number} {kind}, {name}: {word} ({text}; {took:.1f} s)", flush=True)
            if result == "failures":
                repeat = f"--seed {options.seed} --trial {number}"
                print(f"  repeat it with: {repeat}; its files: {folder}/trial-{number}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; the trials so far:")
    print(f"\n{show(counts)}\n\nSeed {options.seed}, {(time.monotonic() - begin) / 60:.1f} minutes.", end=" ")
    print(f"In {late} trials the work ended before the fault came.")
    failed = any(key[2] == "failures" for key in counts)
    if not failed and options.keep is None:
        shutil.rmtree(folder)
    return int(failed or counts.total() < len(numbers))


if __name__ == "__main__":
    sys.exit(main())
