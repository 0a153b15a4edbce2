"""Driving a search over many examples in lanes of one fixed batch shape.

Every round of an example has a slot of its own until it breaks the example or is over; then the next one
takes the slot. The network only ever sees batches of the lane's width, because another shape changes bits; at
one width a round's path does not depend on its neighbours. Where slots would be idle, later rounds of an
example begin before its earlier ones are over, but the lowest round that breaks it counts; and searches that
can (see ahead.py) look ahead. So the result is the same for any order, split or interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast, final

import torch
from torch import Tensor

from allrounder.attacks.search.base import Answer, Question, Search, State, inquire, succeeded
from allrounder.attacks.search.lookahead import Ahead
from allrounder.errors import ThreatError
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool

CONFIRM_EVERY = 32
"""Steps after which finds are confirmed, however few: until then they would be lost in an interruption."""


@final
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

    def some(self, index: Labels) -> Points:
        """The points at these positions."""
        return Points(self.x[index], self.y[index], self.natural[index], self.rows[index])


@final
@dataclass(frozen=True, eq=False)
class Hunted:
    """What became of every point so far: settled or not, what the plain network says of the image found
    (the label where none was), that image, and the passes spent on all."""

    settled: PerExampleBool
    predicted: Labels
    x: Images
    passes: Passes = field(default_factory=Passes)

    @classmethod
    def nothing(cls, points: Points) -> Hunted:
        """Before the first question."""
        settled = torch.zeros(len(points), dtype=torch.bool)
        return cls(settled, points.y.cpu().clone(), points.x.clone())


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """A round of a point; with its state and place in the search's cycle if it was already under way."""

    point: int
    round: int
    state: State | None = None
    phase: int = 0
    asked: int = 0


@final
@dataclass(eq=False)
class Course:
    """How far a point is: how many rounds were begun, which are undecided, and whether the last of them has
    broken the point, or seems to."""

    begun: int = 0
    undecided: set[int] = field(default_factory=set[int])
    found: bool = False

    def settled(self, rounds: int) -> bool:
        """Whether no round that could still count is left."""
        return not self.undecided and (self.found or self.begun == rounds)


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

    def hunt(self, points: Points, report: Callable[[Hunted], None] = lambda hunted: None) -> Hunted:
        """Search all points; `report` hears how it stands after every step, and may raise to stop."""
        self.points, self.rounds = points, self.search.rounds(points.natural.shape[1])
        self.courses = [Course() for _ in range(len(points))]
        self.queue, self.resumed = deque(range(len(points))), deque[Entry]()
        self.slots: list[Entry | None] = [None] * self.width
        self.asked, self.ahead = [0] * self.width, cast(Ahead | None, None)
        self.suspects: list[tuple[Entry, Tensor]] = []
        # A network of one class may leave a search no round; then no point is broken.
        settled = torch.full((len(points),), self.rounds == 0)
        self.found = replace(Hunted.nothing(points), settled=settled)
        if bool(settled.all()):
            report(self.found)
            return self.found
        # Free slots hold the first point, or what was left there; what comes of them is thrown away.
        self.state = {name: self._spread(row) for name, row in self._begin(Entry(0, 0)).items()}
        self.x, self.y = self._spread(points.x[:1]), self._spread(points.y[:1])
        cycle, told, steps = self.search.cycle, 0, 0
        while told < len(points):
            for phase, gradient in enumerate(cycle):
                self._fill(phase)
                if any(entry is not None for entry in self.slots):
                    self._advance(gradient, (phase + 1) % len(cycle))
            steps += 1
            full, idle = len(self.suspects) >= self.width, not any(e is not None for e in self.slots)
            if full or idle or steps % CONFIRM_EVERY == 0:
                self._confirm()
            told, self.found = int(settled.sum()), replace(self.found, passes=self.passes)
            report(self.found)
        return self.found

    def _begin(self, entry: Entry) -> State:
        """The state of one point at the beginning of a round: always a batch of one, whatever else goes
        on."""
        points, at = self.points, slice(entry.point, entry.point + 1)
        draws = self.draws.at("round", entry.round).per_example(points.rows[at].cpu())
        question = Question(points.x[at], points.y[at], points.natural[at], self.threat, draws, entry.round)
        return self.search.begin(question)

    def _spread(self, row: Tensor) -> Tensor:
        return row.repeat(self.width, *[1] * (row.dim() - 1))

    def _fill(self, phase: int) -> None:
        """Give free slots to those that wait for this phase of the search's cycle."""
        for slot, entry in enumerate(self.slots):
            if entry is None and (chosen := self._next(phase)) is not None:
                self.slots[slot], self.asked[slot], self.ahead = chosen, chosen.asked, None
                self.x[slot], self.y[slot] = self.points.x[chosen.point], self.points.y[chosen.point]
                rows = self._begin(chosen) if chosen.state is None else chosen.state
                for name, row in rows.items():
                    self.state[name][slot] = row[0]

    def _next(self, phase: int) -> Entry | None:
        for _ in range(len(self.resumed)):
            entry = self.resumed.popleft()
            if entry.phase == phase:
                return entry
            self.resumed.append(entry)
        while phase == 0 and self.queue:
            point = self.queue.popleft()
            course = self.courses[point]
            if course.begun < self.rounds and not course.found:
                entry = Entry(point, course.begun)
                course.begun += 1
                course.undecided.add(entry.round)
                # Round by round: a point comes again after all the others.
                self.queue.append(point)
                return entry
        return None

    def _advance(self, gradient: bool, following: int) -> None:
        """One question for the whole lane; what it finds is suspected, what is over makes room."""
        ahead = self.ahead = self.ahead or self._look_ahead()
        before, x, y = (
            (self.state, self.x, self.y)
            if ahead is None
            else (ahead.state, self.x[ahead.slot], self.y[ahead.slot])
        )
        answer = inquire(self.search, self.network, before, self.threat, gradient)
        self.passes += answer.passes
        self._check_finite(answer)
        found = succeeded(answer, x, y, self.threat)
        after = self.search.tell(before, answer, self.threat)
        over, rows = self.search.finished(after), list(range(self.width))
        if ahead is None:
            self.state = after
        else:
            ends = found | over | self.search.moved(before, after)
            self.state, rows = ahead.follow(self.state, after, _list(ends))
        self._act(answer, _list(found), _list(over), rows, following)

    def _look_ahead(self) -> Ahead | None:
        """A view for idle slots, where there are any and the search can look ahead."""
        occupied = [slot for slot, entry in enumerate(self.slots) if entry is not None]
        none = torch.zeros_like(self.y)
        if len(occupied) == self.width or self.search.ahead(self.state, none) is None:
            return None
        return Ahead(self.search, self.state, occupied, self.width)

    def _act(
        self, answer: Answer, found: list[bool], over: list[bool], rows: list[int], following: int
    ) -> None:
        """Do with every slot what the row of its last answer says."""
        ahead = self.ahead
        for slot, row in enumerate(rows):
            entry = self.slots[slot]  # read anew: a find empties slots of later rounds
            if entry is None:
                continue
            self.asked[slot] += 1 if ahead is None else 1 + ahead.rows[slot].index(row)
            if found[row]:
                self.slots[slot] = self.ahead = None
                state = {name: tensor[slot : slot + 1].clone() for name, tensor in self.state.items()}
                on = replace(entry, state=state, phase=following, asked=self.asked[slot])
                self._suspect(on, answer.x[row].clone())
            elif over[row]:
                self.slots[slot] = self.ahead = None
                self._check_budget(self.asked[slot])
                self._close(entry)

    def _check_finite(self, answer: Answer) -> None:
        # In the sum of the images, one number that is not finite shows; of logits, it might overflow.
        if not bool(answer.x.sum().isfinite() & answer.logits.isfinite().all()):
            who = f"{self.search} under {self.threat}"
            raise ThreatError(
                f"{who}: images or logits are not finite; the network's gradients may be broken"
            )

    def _check_budget(self, asked: int) -> None:
        if asked != self.search.questions():
            told = f"ended a round after {asked} questions, expected {self.search.questions()}"
            raise ThreatError(f"{self.search} under {self.threat}: {told}; this is a bug in the attack")

    def _suspect(self, entry: Entry, x: Tensor) -> None:
        """Put a find aside to be confirmed, and forget the later rounds of its point."""
        course = self.courses[entry.point]
        course.found, course.begun = True, entry.round + 1
        course.undecided = {number for number in course.undecided if number <= entry.round}

        def counts(other: Entry) -> bool:
            return other.point != entry.point or other.round < entry.round

        self.slots = [other if other is None or counts(other) else None for other in self.slots]
        self.resumed = deque(filter(counts, self.resumed))
        self.suspects = [*((other, at) for other, at in self.suspects if counts(other)), (entry, x)]

    def _confirm(self) -> None:
        """Show what was found to the plain network; what it does not confirm goes on searching."""
        suspects, self.suspects = self.suspects[: self.width], self.suspects[self.width :]
        if not suspects:
            return
        filled = [x for _, x in suspects] + [suspects[0][1]] * (self.width - len(suspects))
        with torch.no_grad():
            logits = self.plain(torch.stack(filled))
        if not bool(logits.isfinite().all()):
            raise ThreatError(f"{self.search} under {self.threat}: the plain network's logits are not finite")
        predicted = logits.argmax(1)
        self.passes += Passes(forwards=1)
        for (entry, x), prediction in zip(suspects, predicted, strict=False):
            if prediction != self.points.y[entry.point]:
                self.found.predicted[entry.point], self.found.x[entry.point] = prediction, x
                self._close(entry)
            else:
                self._resume(entry)

    def _resume(self, entry: Entry) -> None:
        """Let a round go on that has not broken its point after all."""
        assert entry.state is not None
        self.courses[entry.point].found = False
        if entry.point not in self.queue:
            self.queue.append(entry.point)
        if bool(self.search.finished(entry.state)):
            self._close(entry)
        else:
            self.resumed.append(entry)

    def _close(self, entry: Entry) -> None:
        course = self.courses[entry.point]
        course.undecided.discard(entry.round)
        self.found.settled[entry.point] = course.settled(self.rounds)


def _list(flags: PerExampleBool) -> list[bool]:
    return cast(list[bool], flags.tolist())
