"""Messages between the ranks of a run through torch's store, and errors that name a missing rank.

Learners may need hours for a step, so there is no deadline for a wait as such: a rank waits for another as
long as that rank takes steps. A rank that failed, was killed or takes no step for `timeout` seconds is named
in the error of every other rank. torch's own collectives only report a timeout, which is why this module
exists. Messages are JSON in the store; tensors are sent by collectives, once all ranks are known to be there.
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

POLL_SECONDS = 0.5
"""Seconds between two checks of the other ranks, and between two heartbeats."""
GRACE_SECONDS = 5.0
"""Seconds to wait for the other ranks to report a failure that this rank has also seen."""


@final
class Coordinator:
    """One rank's connection to the store that all ranks share."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float):
        """Starts the watchdog and registers the host and process id of this rank."""
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.step = 0
        self.followers: frozenset[int] = frozenset()
        """Ranks that share a learner's batches and stop when the leader of that learner stops."""
        self.num_gathers = 0
        self.num_heartbeats = 0
        self.last_heartbeat = 0.0
        self.last_stop_check = 0.0
        self.stop_step: int | None = None
        self.stop_announced = False
        self.bytes_sent: Counter[str] = Counter()
        self.num_notes: Counter[int] = Counter()
        """Notes sent to rank 0; on rank 0, notes received from each rank."""
        self.request_time: float | None = None
        """When the pending request to the store began, if there is one."""
        threading.Thread(target=self._watchdog, daemon=True).start()
        store.set(f"host/{rank}", json.dumps([platform.node(), os.getpid(), _pid_namespace()]))

    def name(self, rank: int) -> str:
        """A rank and its host, for messages."""
        host = self._get(f"host/{rank}")
        return f"rank {rank}" if host is None else f"rank {rank} on {json.loads(host)[0]}"

    def _get(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    def all_gather_object(
        self, label: str, value: Any, while_waiting: Callable[[], object] = lambda: None
    ) -> list[Any]:
        """Wait until every rank calls this with the same label; returns the values, below 8 MB as JSON, in
        rank order. `while_waiting` is called about twice a second."""
        with self._store_errors():
            self.num_gathers += 1
            self.store.set(self._gather_key(self.rank), json.dumps([label, value]))
            self._wait_for_keys([self._gather_key(rank) for rank in self._other_ranks()], while_waiting)
            entries = [json.loads(self.store.get(self._gather_key(rank))) for rank in range(self.size)]
            # Every rank that arrived here has read the values of the previous gather.
            if self.num_gathers > 1:
                self.store.delete_key(f"gather/{self.num_gathers - 1}/{self.rank}")
            for rank, (other, _) in enumerate(entries):
                if other != label:
                    raise WorldError(
                        f"{self.name(rank)} waits at {other}, {self.name(self.rank)} at {label}: they do not "
                        "run the same training; start all ranks again with the same command"
                    )
            return [entry for _, entry in entries]

    def heartbeat(self, t: int | None = None) -> None:
        """Report that this rank is working on step t; writes at most once per POLL_SECONDS."""
        self.step = self.step if t is None else t
        if time.monotonic() - self.last_heartbeat > POLL_SECONDS:
            with self._store_errors():
                self.last_heartbeat = time.monotonic()
                self.num_heartbeats += 1
                self.store.set(f"heartbeat/{self.rank}", f"{self.num_heartbeats} {self.step}")

    def send_note(self, note: Any) -> None:
        """Send a JSON value of less than 8 MB to rank 0 without waiting; `recv_notes` receives it."""
        with self._store_errors():
            self.num_notes[self.rank] += 1
            self.store.set(f"note/{self.rank}/{self.num_notes[self.rank]}", json.dumps(note))

    def recv_notes(self) -> list[Any]:
        """On rank 0: the notes sent since the last call, each rank's in the order of sending."""
        notes: list[Any] = []
        with self._store_errors():
            for rank in self._other_ranks():
                while self.store.check([key := f"note/{rank}/{self.num_notes[rank] + 1}"]):
                    self.num_notes[rank] += 1
                    notes.append(json.loads(self.store.get(key)))
                    self.store.delete_key(key)
        return notes

    def stop_requested(self, signal: str | None) -> str | None:
        """Why all ranks should stop, if any of them received a signal; `signal` is the one received here."""
        with self._store_errors():
            if signal is not None and self._get("stop") is None:
                self.store.set("stop", f"{signal} at {self.name(self.rank)}")
            return self._get("stop")

    def should_stop(self, t: int, signal: str | None) -> str | None:
        """Why all ranks stop after step t, or None if they continue.

        Every rank that learns of a stop announces its step; all stop one step after the largest of them.
        Ranks that share a learner cannot wait for announcements while others of the group are inside a step.
        So the group's leader announces for all of them, and its followers, which may be one step ahead, check
        after every step.
        """
        follows = self.rank in self.followers
        checked_recently = time.monotonic() - self.last_stop_check <= POLL_SECONDS
        if signal is None and checked_recently and not follows and not self.stop_announced:
            return None
        self.last_stop_check = time.monotonic()
        reason = self.stop_requested(signal)
        with self._store_errors():
            if self.stop_step is None and reason is not None:
                self._announce_stop(t)
                keys = [f"stop_step/{rank}" for rank in range(self.size) if rank not in self.followers]
                if not follows:
                    self._wait_for_keys(keys)
                if self.store.check(keys):
                    self.stop_step = max(int(self.store.get(key)) for key in keys) + 1
            return reason if self.stop_step is not None and t >= self.stop_step else None

    def leave(self, error: BaseException | None, *, hosts_store: bool) -> None:
        """Report that this rank ends, and its error. A rank that hosts the store waits up to GRACE_SECONDS
        for the others, because the store ends with it."""
        with suppress(RuntimeError):
            if error is not None:
                self.store.set(f"error/{self.rank}", f"{type(error).__name__}: {error}")
            self.store.set(f"left/{self.rank}", "")
            deadline = time.monotonic() + GRACE_SECONDS
            while hosts_store and time.monotonic() < deadline:
                if all(self._get(f"left/{r}") is not None or self._is_dead(r) for r in self._other_ranks()):
                    break
                time.sleep(0.01)

    @contextmanager
    def explain_failure(self, what: str, ranks: Sequence[int]) -> Generator[None]:
        """Turn the error of a collective among `ranks` into a WorldError that names the rank at fault."""
        try:
            yield
        except RuntimeError as error:
            with self._store_errors():
                raise WorldError(f"{what}: {self._blame(ranks) or error}") from error

    def _other_ranks(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _gather_key(self, rank: int) -> str:
        return f"gather/{self.num_gathers}/{rank}"

    def _wait_for_keys(self, keys: Iterable[str], while_waiting: Callable[[], object] = lambda: None) -> None:
        """Wait until all keys exist; raise if a rank whose key is missing stops taking steps."""
        heartbeats: dict[int, tuple[str, float]] = {}
        pause = 0.0005
        last_check = time.monotonic()
        while missing := [key for key in keys if not self.store.check([key])]:
            time.sleep(pause)
            self.request_time = time.monotonic()
            pause = min(2 * pause, 0.1)
            if time.monotonic() - last_check > POLL_SECONDS:
                last_check = time.monotonic()
                while_waiting()
                if self.store.check(["stop"]):
                    self._announce_stop(self.step)
                self._check_alive(missing, heartbeats)

    def _announce_stop(self, t: int) -> None:
        if not self.stop_announced and self.rank not in self.followers:
            self.stop_announced = True
            self.store.set(f"stop_step/{self.rank}", str(t))

    def _check_alive(self, missing: Sequence[str], heartbeats: dict[int, tuple[str, float]]) -> None:
        """Raise if a rank ended, was killed, or took no step for `timeout` seconds."""
        reason = self._ended_reason(self._other_ranks())
        # A rank that arrived and already left after we polled is not the cause.
        if reason is not None and not self.store.check(list(missing)):
            raise WorldError(reason)
        for rank in [int(key.rpartition("/")[2]) for key in missing]:
            beat = self._get(f"heartbeat/{rank}") or "0 0"
            last_beat, since = heartbeats.setdefault(rank, (beat, time.monotonic()))
            if beat != last_beat:
                heartbeats[rank] = beat, time.monotonic()
            elif time.monotonic() - since > self.timeout:
                raise WorldError(
                    f"{self.name(rank)} took no step for {self.timeout:g} s, its last heartbeat was in "
                    f"step {beat.split()[1]}: it hangs or is cut off; end all ranks and resume"
                )

    def _ended_reason(self, ranks: Iterable[int]) -> str | None:
        """Why a rank failed or was killed, if one did; a rank that failed because of another one comes
        last."""
        consequence: str | None = None
        for rank in ranks:
            if (error := self._get(f"error/{rank}")) is not None:
                message = f"{self.name(rank)} ended: {error}"
                if f"ended: {WorldError.__name__}" not in message:
                    return message
                consequence = message
            elif self._is_dead(rank):
                return f"{self.name(rank)} was killed; resume from the last checkpoint"
        return consequence

    def _is_dead(self, rank: int) -> bool:
        """Whether a rank on this machine has no living process; False for ranks on other machines."""
        if (host := self._get(f"host/{rank}")) is None:
            return False
        _, pid, namespace = json.loads(host)
        if namespace is None or namespace != _pid_namespace():
            return False
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    def _blame(self, ranks: Sequence[int]) -> str | None:
        """Name the rank that caused a failed collective: the one that failed by itself, or else those that do
        not report the same failure within GRACE_SECONDS."""
        self.store.set(f"lost/{self.rank}", "")
        deadline = time.monotonic() + GRACE_SECONDS
        reason: str | None = None
        while time.monotonic() < deadline:
            reason = self._ended_reason(self._other_ranks())
            if reason is not None and WorldError.__name__ not in reason:
                return reason
            time.sleep(0.1)
        silent = [rank for rank in ranks if rank != self.rank and self._get(f"lost/{rank}") is None]
        return ", ".join(f"{self.name(rank)} does not answer" for rank in silent) or reason

    @contextmanager
    def _store_errors(self) -> Generator[None]:
        """Time the requests to the store for the watchdog, and explain a lost connection to it."""
        self.request_time = time.monotonic()
        try:
            yield
        except WorldError:
            raise
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise WorldError(
                f"rank {self.rank} on {platform.node()} lost the connection to rank 0 or its launcher, which "
                f"ended or cannot be reached ({first}); end all ranks and resume"
            ) from error
        finally:
            self.request_time = None

    def _watchdog(self) -> None:
        """Exit if the store stops answering. A dead network raises nothing, and a thread that is blocked
        inside the C++ store cannot be interrupted."""
        while True:
            time.sleep(POLL_SECONDS)
            begin = self.request_time
            if begin is not None and time.monotonic() - begin > self.timeout + GRACE_SECONDS:
                LOG.error(
                    f"rank {self.rank} on {platform.node()} got no answer from rank 0 or its launcher for "
                    f"{self.timeout:g} s: the network is down or that machine stopped; end all ranks and "
                    "resume"
                )
                os._exit(1)


def _pid_namespace() -> str | None:
    """An id of this boot and pid namespace, within which process ids can be compared; None without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
