"""The line between the processes of a run: notes that all wait for, and who is missing.

Learners may be hours apart, so waiting has no deadline of its own: a rank is waited for as long as it takes
steps. One that ended, was killed or takes no step for `timeout` seconds is named in the error of all others.
Notes travel through torch's store and are JSON; tensors travel through collectives, when all are known to be
there.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from torch._C._distributed_c10d import Store

from allrounder.errors import WorldError
from allrounder.system.progress import LOG

PULSE = 0.5
"""Seconds between two looks at what others are doing, and between two signs of life."""
GRACE = 5.0
"""Seconds in which the others tell of the failure that this rank has just met."""


@final
class Link:
    """What one process knows of the others, and tells them."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float):
        """Introduces this process."""
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.meetings, self.step, self.signs, self.told, self.looked = 0, 0, 0, 0.0, 0.0
        self.followers: frozenset[int] = frozenset()
        """Ranks that stop where the one stops that they work with."""
        self.end: int | None = None
        self.paused = False
        self.wire: Counter[str] = Counter()
        self.posted: Counter[int] = Counter()
        """Notes left for rank 0; there, notes collected from every rank."""
        self.asked: float | None = None
        """Since when the store owes an answer."""
        threading.Thread(target=self._watch, daemon=True).start()
        store.set(f"who/{rank}", json.dumps([platform.node(), os.getpid(), _space()]))

    def name(self, rank: int) -> str:
        """A rank and the machine it runs on."""
        known = self.store.check([f"who/{rank}"])
        return f"rank {rank} on {json.loads(self.store.get(f'who/{rank}'))[0]}" if known else f"rank {rank}"

    def meet(self, what: str, note: Any, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
        """Wait for everybody to come to the same point; the notes of all, in the order of ranks.

        `meanwhile` is called twice a second. A note has less than 8 MB, which is all that the store takes.
        """
        with self._store_watched():
            self.meetings += 1
            self.store.set(self._place(self.rank), json.dumps([what, note]))
            self._wait([self._place(rank) for rank in self._others()], meanwhile)
            found = [json.loads(self.store.get(self._place(rank))) for rank in range(self.size)]
            # Whoever is here has read the notes of the meeting before.
            if self.meetings > 1:
                self.store.delete_key(f"meeting/{self.meetings - 1}/{self.rank}")
            for rank, (doing, _) in enumerate(found):
                if doing != what:
                    raise WorldError(
                        f"{self.name(rank)} is at {doing}, {self.name(self.rank)} at {what}: they do not run "
                        "the same training; start all ranks anew"
                    )
            return [its for _, its in found]

    def tick(self, t: int | None = None) -> None:
        """Show that this rank is at work, at most every half second; `t` is the step it is in."""
        self.step = self.step if t is None else t
        if time.monotonic() - self.told > PULSE:
            with self._store_watched():
                self.told, self.signs = time.monotonic(), self.signs + 1
                self.store.set(f"sign/{self.rank}", f"{self.signs} {self.step}")

    def post(self, note: Any) -> None:
        """Leave a note for rank 0, which collects it when it likes; no more than a meeting's."""
        with self._store_watched():
            self.posted[self.rank] += 1
            self.store.set(f"post/{self.rank}/{self.posted[self.rank]}", json.dumps(note))

    def collect(self) -> list[Any]:
        """On rank 0: the notes that were left since it last asked, each rank's in their order."""
        found: list[Any] = []
        with self._store_watched():
            for rank in self._others():
                while self.store.check([key := f"post/{rank}/{self.posted[rank] + 1}"]):
                    self.posted[rank] += 1
                    found.append(json.loads(self.store.get(key)))
                    self.store.delete_key(key)
        return found

    def wanted(self, signal: str | None) -> str | None:
        """Why all ranks are to stop, if any was asked to; `signal` is what this one was asked by."""
        with self._store_watched():
            if signal is not None and not self.store.check(["stop"]):
                self.store.set("stop", f"{signal} at {self.name(self.rank)}")
            return self.store.get("stop").decode() if self.store.check(["stop"]) else None

    def stops(self, t: int, signal: str | None) -> str | None:
        """After step t: why all ranks stop now, if somebody was asked to stop and this is the step agreed on.

        Each rank that hears of it tells the step it has come to; all stop one step after the last of them.
        Who works in a group cannot wait while others of the group are inside a step, so there the first one
        speaks for all, and the others, who can be one step ahead of it, look after every step.
        """
        follows, seldom = self.rank in self.followers, time.monotonic() - self.looked <= PULSE
        if signal is None and seldom and not follows and not self.paused:
            return None
        self.looked = time.monotonic()
        reason = self.wanted(signal)
        with self._store_watched():
            if self.end is None and reason is not None:
                self._pause(t)
                told = [f"pause/{rank}" for rank in range(self.size) if rank not in self.followers]
                if not follows:
                    self._wait(told)
                if self.store.check(told):
                    self.end = max(int(self.store.get(key)) for key in told) + 1
            return reason if self.end is not None and t >= self.end else None

    def leave(self, error: BaseException | None, *, last: bool) -> None:
        """Tell the others that this rank ends, and why if by an error; the last one waits a little for the
        others, because the store ends with it."""
        with suppress(RuntimeError):
            if error is not None:
                self.store.set(f"fell/{self.rank}", f"{type(error).__name__}: {error}")
            self.store.set(f"left/{self.rank}", "")
            until = time.monotonic() + GRACE
            while last and time.monotonic() < until and not all(map(self._left, self._others())):
                time.sleep(0.01)

    def _left(self, rank: int) -> bool:
        return self.store.check([f"left/{rank}"]) or self._gone(rank)

    @contextmanager
    def watched(self, what: str, ranks: Sequence[int]) -> Generator[None]:
        """Say who is to blame when tensors do not arrive."""
        try:
            yield
        except RuntimeError as error:
            with self._store_watched():
                raise WorldError(f"{what}: {self._culprit(ranks) or error}") from error

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _place(self, rank: int) -> str:
        return f"meeting/{self.meetings}/{rank}"

    def _wait(self, keys: Iterable[str], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until all keys are there, while those whose keys are missing take steps."""
        missing, seen, pause, looked = list(keys), dict[int, tuple[bytes, float]](), 0.0005, time.monotonic()
        while missing := [key for key in missing if not self.store.check([key])]:
            time.sleep(pause)
            self.asked = time.monotonic()
            pause = min(2 * pause, 0.1)
            if time.monotonic() - looked > PULSE:
                looked = time.monotonic()
                meanwhile()
                if self.store.check(["stop"]):
                    self._pause(self.step)
                self._look_after(missing, seen)

    def _pause(self, t: int) -> None:
        if not self.paused and self.rank not in self.followers:
            self.paused = True
            self.store.set(f"pause/{self.rank}", str(t))

    def _look_after(self, missing: Sequence[str], seen: dict[int, tuple[bytes, float]]) -> None:
        """Raise if somebody ended, is gone, or took no step for too long."""
        # Who has come and left again since the keys were looked for is not to blame.
        if (ended := self._ended(self._others())) is not None and not self.store.check(list(missing)):
            raise WorldError(ended)
        for rank in [int(key.rpartition("/")[2]) for key in missing]:
            known = self.store.check([f"sign/{rank}"])
            sign = self.store.get(f"sign/{rank}") if known else b"0 0"
            before, since = seen.setdefault(rank, (sign, time.monotonic()))
            if sign != before:
                seen[rank] = sign, time.monotonic()
            elif time.monotonic() - since > self.timeout:
                raise WorldError(
                    f"{self.name(rank)} took no step for {self.timeout:g} s, its last sign was of "
                    f"step {sign.decode().split()[1]}: it hangs or is cut off; end all ranks and resume"
                )

    def _ended(self, ranks: Iterable[int]) -> str | None:
        """Who of them told that it ended, or is no longer a process of this machine."""
        later: str | None = None
        for rank in ranks:
            if self.store.check([f"fell/{rank}"]):
                told = f"{self.name(rank)} ended: {self.store.get(f'fell/{rank}').decode()}"
                if f"ended: {WorldError.__name__}" not in told:
                    return told
                later = told
            elif self._gone(rank):
                return f"{self.name(rank)} was killed; resume from what was saved"
        return later

    def _gone(self, rank: int) -> bool:
        if not self.store.check([f"who/{rank}"]):
            return False
        _, pid, space = json.loads(self.store.get(f"who/{rank}"))
        if space is None or space != _space():
            return False
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    def _culprit(self, ranks: Sequence[int]) -> str | None:
        """Wait a little for the others to tell of the same failure; who does not is its cause."""
        self.store.set(f"lost/{self.rank}", "")
        others, until = [rank for rank in ranks if rank != self.rank], time.monotonic() + GRACE
        ended: str | None = None
        while time.monotonic() < until:
            ended = self._ended(self._others())
            if ended is not None and WorldError.__name__ not in ended:
                return ended
            time.sleep(0.1)
        silent = [rank for rank in others if not self.store.check([f"lost/{rank}"])]
        return ", ".join(f"{self.name(rank)} does not answer" for rank in silent) or ended

    @contextmanager
    def _store_watched(self) -> Generator[None]:
        """The store lives in the launcher, or with rank 0."""
        self.asked = time.monotonic()
        try:
            yield
        except WorldError:
            raise
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise WorldError(
                f"rank {self.rank} on {platform.node()} lost the line to rank 0 or the launcher there, which "
                f"ended or cannot be reached ({first}); end all ranks and resume"
            ) from error
        finally:
            self.asked = None

    def _watch(self) -> None:
        """End this process when the store does not answer: a cable that was pulled sends no word, and who
        waits for one inside the library hears no signal."""
        while True:
            time.sleep(PULSE)
            if self.asked is not None and time.monotonic() - self.asked > self.timeout + GRACE:
                LOG.error(
                    f"rank {self.rank} on {platform.node()} got no answer from rank 0 or the launcher there "
                    f"for {self.timeout:g} s: the line is cut or that machine stopped; end all ranks, resume"
                )
                os._exit(1)


def _space() -> str | None:
    """What tells whether two process numbers belong to one machine, where that can be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
