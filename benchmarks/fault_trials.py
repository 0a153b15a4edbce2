"""A trial: a work, the folder it runs in, and the comparison with the same work without a fault."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

from fault_processes import Child, Command, Failure, check_output, run_to_end, start, wait_for
from fault_strikes import Place, count_operations, signal_at
from fault_victims import MODEL, Remains, Victim, first_difference, make_victims

Prepare = Callable[[int], Callable[[], object]]
"""From the number of a process of a work to what it does before it starts."""


@final
@dataclass(frozen=True)
class Reference:
    """A work without a fault."""

    remains: Remains
    seconds: float
    operations: Mapping[tuple[int, Place], int]
    """File operations by process."""
    folder: Path


@final
@dataclass
class Bench:
    """The works, and one undisturbed run of each that is used."""

    folder: Path
    victims: Mapping[str, Victim] = field(init=False)
    references: dict[str, Reference] = field(default_factory=dict[str, Reference])

    def __post_init__(self) -> None:
        self.victims = make_victims(self.folder)

    def reference(self, name: str) -> Reference:
        """Return the undisturbed run of a work."""
        if name not in self.references:
            if any(path.name == MODEL and not path.exists() for path in self.victims[name].inputs):
                self._train_model()
            self.references[name] = self._run(self.victims[name])
        return self.references[name]

    def _train_model(self) -> None:
        """Train the network that evaluations attack: better than the others, so that attacks have work."""
        sets = [
            f"--set={text}" for text in ("epochs=8", "train_images=1500", "model.width=4", "batch_size=32")
        ]
        words = ("train", str(self.folder / "solo.toml"), "--out", MODEL, "--threads", "1", *sets)
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        (child,) = run_to_end([Command(words, self.folder)], logs, MODEL)
        check_output(child, [0])

    def _run(self, victim: Victim) -> Reference:
        """Run a work without a fault, and count its file operations."""
        folder = self.folder / "references" / victim.name
        victim.setup(folder)
        counts = self.folder / "references" / f"{victim.name}.counts"
        begin = time.monotonic()
        children = [
            start(
                command,
                folder.parent / f"{victim.name}-{number}.log",
                partial(count_operations, folder, counts.with_suffix(f".{number}")),
            )
            for number, command in enumerate(victim.commands(folder))
        ]
        wait_for(children)
        seconds = time.monotonic() - begin
        for child in children:
            check_output(child, [0])
        operations: dict[tuple[int, Place], int] = {}
        for number in range(len(children)):
            for place in ("main", "worker"):
                file = Path(f"{counts.with_suffix(f'.{number}')}-{place}")
                if file.exists() and file.stat().st_size:
                    operations[number, place] = file.stat().st_size
        return Reference(victim.remains(folder), seconds, operations, folder)


@final
@dataclass
class Trial:
    """One fault, with the random numbers that choose it."""

    rng: random.Random
    victim: Victim
    reference: Reference
    folder: Path
    """The folder in which the commands run."""
    logs: Path
    facts: list[str] = field(default_factory=list[str])
    """What was done, in words."""
    happened: bool = True
    """Whether the fault came before the end of the work."""
    sessions: int = 0

    def setup(self) -> None:
        """Create the folder, with the inputs of the work."""
        self.victim.setup(self.folder)

    def start(self, prepare: Prepare | None = None) -> list[Child]:
        """Start or continue the work."""
        return self.start_commands(self.victim.commands(self.folder), prepare)

    def start_commands(self, commands: Sequence[Command], prepare: Prepare | None = None) -> list[Child]:
        """Start commands at the same time."""
        self.sessions += 1
        return [
            start(
                command,
                self.logs / f"session-{self.sessions}-{number}.log",
                (lambda: None) if prepare is None else prepare(number),
            )
            for number, command in enumerate(commands)
        ]

    def run(self, prepare: Prepare | None = None) -> list[Child]:
        """Start or continue the work, and wait for its end."""
        children = self.start(prepare)
        wait_for(children)
        return children

    def read(self, prepare: Callable[[], object] = lambda: None) -> list[Child]:
        """Run the commands that read the work, one after the other."""
        self.sessions += 1
        children: list[Child] = []
        for number, command in enumerate(self.victim.readers(self.folder)):
            children.append(start(command, self.logs / f"session-{self.sessions}-{number}.log", prepare))
            wait_for(children[-1:])
        return children

    def finish(self) -> str:
        """Continue the work to its end; raise Failure unless its results are those of the undisturbed one."""
        for child in self.run():
            check_output(child, [0])
        self.compare()
        return "identical"

    def compare(self) -> None:
        """Raise Failure unless the results are those of the undisturbed work."""
        difference = first_difference(self.victim.remains(self.folder), self.reference.remains)
        if difference is not None:
            raise Failure(difference)

    def interrupt(self) -> None:
        """Leave an unfinished work: kill it at a file operation."""
        kill_at_operation(self, signal.SIGKILL)

    def choose_operation(self) -> tuple[int, Place, int]:
        """Choose a process of the work and the number of one of its file operations."""
        place = self.rng.choice(sorted(self.reference.operations))
        count = self.reference.operations[place]
        return *place, self.rng.randint(1, max(1, count // 2 if place[1] == "worker" else count))


def kill_at_operation(trial: Trial, number: signal.Signals) -> list[Child]:
    """Run the work with a signal to one of its processes at a file operation."""
    index, place, call = trial.choose_operation()
    mark = trial.logs / f"mark-{trial.sessions}"
    strike = partial(signal_at, trial.folder, place, call, number, mark)
    trial.facts.append(f"{number.name} of process {index} ({place}) at file operation {call}")
    children = trial.run(lambda child: strike if child == index else lambda: None)
    trial.happened = mark.exists()
    return children


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, except locks."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
