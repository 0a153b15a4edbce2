"""Driving a search over many examples in lanes of one fixed batch shape.

Every example has a slot of its own until it is broken or its rounds are used up; then the next one takes the
slot. The network only ever sees batches of the lane's width, because another shape changes bits; at one width
an example's path does not depend on its neighbours. So the result is the same for any order, split or
interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast, final

import torch
from torch import Tensor

from allrounder.attacks.search import Question, Search, State, cost, inquire, succeeded
from allrounder.errors import ThreatError
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool


@dataclass(frozen=True, eq=False)
class Points:
    """Examples to be attacked: images, labels, natural logits, and the number that addresses their
    randomness."""

    x: Images
    y: Labels
    natural: Logits
    rows: Labels

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Hunted:
    """What became of every point: broken or not, the image that broke it (or its own), and the passes
    spent."""

    broken: PerExampleBool
    x: Images
    passes: Passes


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """A point in one of its rounds, with its state if it was already under way."""

    point: int
    round: int = 0
    state: State | None = None


@final
class Lane:
    """A search, the network it asks, the network that confirms its finds, and the slots between them."""

    def __init__(
        self, search: Search, network: Classifier, plain: Classifier, threat: Threat, draws: Draws, width: int
    ):
        """`network` may be a folded copy; a point leaves only after `plain` confirms that it is
        misclassified."""
        self.search, self.network, self.plain = search, network, plain
        self.threat, self.draws, self.width = threat, draws, width
        self.passes = Passes()

    def hunt(self, points: Points, report: Callable[[int, int], None] = lambda done, broken: None) -> Hunted:
        """Search all points; `report` hears how many are done and how many of them are broken."""
        if len(points) == 0:
            return Hunted(torch.zeros(0, dtype=torch.bool), points.x, self.passes)
        self.points, self.rounds = points, self.search.rounds(points.natural.shape[1])
        self.waiting = deque(Entry(point) for point in range(len(points)))
        self.slots: list[Entry | None] = [None] * self.width
        self.suspects: list[tuple[Entry, Tensor]] = []
        self.broken, self.x = torch.zeros(len(points), dtype=torch.bool), points.x.clone()
        # Free slots hold the first point; what comes of them is thrown away.
        self.seats = torch.zeros(self.width, dtype=torch.int64)
        first = self._begin(Entry(0))
        self.state = {name: row.repeat(self.width, *[1] * (row.dim() - 1)) for name, row in first.items()}
        done = 0
        while self.waiting or self.suspects or any(entry is not None for entry in self.slots):
            self._fill()
            if any(entry is not None for entry in self.slots):
                done += self._advance()
            if len(self.suspects) >= self.width or not any(entry is not None for entry in self.slots):
                done += self._confirm()
            report(done, int(self.broken.sum()))
        return Hunted(self.broken, self.x, self.passes)

    def _begin(self, entry: Entry) -> State:
        """The state of one point at the beginning of a round: always a batch of one, whatever else goes
        on."""
        if entry.state is not None:
            return entry.state
        points, at = self.points, slice(entry.point, entry.point + 1)
        draws = self.draws.at("round", entry.round).per_example(points.rows[at].cpu())
        question = Question(points.x[at], points.y[at], points.natural[at], self.threat, draws, entry.round)
        return self.search.begin(question)

    def _sit(self, slot: int, entry: Entry) -> None:
        self.slots[slot], self.seats[slot] = entry, entry.point
        for name, row in self._begin(entry).items():
            self.state[name][slot] = row[0]

    def _fill(self) -> None:
        for slot, entry in enumerate(self.slots):
            if entry is None and self.waiting:
                self._sit(slot, self.waiting.popleft())

    def _advance(self) -> int:
        """One question for the whole lane; how many points are done with it."""
        seats = self.seats.to(self.points.x.device)
        x, y = self.points.x[seats], self.points.y[seats]
        answer = inquire(self.search, self.network, self.state, self.threat)
        self.passes += cost(self.search)
        if not (torch.isfinite(answer.x).all() and torch.isfinite(answer.logits).all()):
            who = f"{self.search} under {self.threat}"
            raise ThreatError(
                f"{who}: images or logits are not finite; the network's gradients may be broken"
            )
        found = _list(succeeded(answer, x, y, self.threat))
        self.state = self.search.tell(self.state, answer, self.threat)
        over = _list(self.search.finished(self.state))
        done = 0
        for slot, entry in enumerate(self.slots):
            if entry is None:
                continue
            if found[slot]:
                rows = {name: row[slot : slot + 1].clone() for name, row in self.state.items()}
                self.suspects.append((replace(entry, state=rows), answer.x[slot].clone()))
                self.slots[slot] = None
            elif over[slot] and entry.round + 1 < self.rounds:
                self._sit(slot, Entry(entry.point, entry.round + 1))
            elif over[slot]:
                self.slots[slot] = None
                done += 1
        return done

    def _confirm(self) -> int:
        """Show what was found to the plain network; what it does not confirm goes on searching."""
        suspects, self.suspects = self.suspects[: self.width], self.suspects[self.width :]
        if not suspects:
            return 0
        filled = [x for _, x in suspects] + [suspects[0][1]] * (self.width - len(suspects))
        with torch.no_grad():
            predicted = self.plain(torch.stack(filled)).argmax(1)
        self.passes += Passes(forwards=1)
        done = 0
        for (entry, x), prediction in zip(suspects, predicted, strict=False):
            if prediction != self.points.y[entry.point]:
                self.broken[entry.point], self.x[entry.point] = True, x
                done += 1
            else:
                done += self._resume(entry)
        return done

    def _resume(self, entry: Entry) -> int:
        """Let a point go on that was not broken after all; one if there is nothing left to try."""
        assert entry.state is not None
        if not bool(self.search.finished(entry.state)):
            self.waiting.append(entry)
        elif entry.round + 1 < self.rounds:
            self.waiting.append(Entry(entry.point, entry.round + 1))
        else:
            return 1
        return 0


def _list(flags: PerExampleBool) -> list[bool]:
    return cast(list[bool], flags.tolist())
