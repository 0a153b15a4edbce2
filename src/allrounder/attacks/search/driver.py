"""Runs a search over many examples in batches of one fixed size.

Each round of an example occupies a slot of the batch until it fools the network or is finished; then the
next round takes the slot. The size is fixed because another shape could change bits, and so a round does not
depend on the other slots. Where slots would be empty, later rounds of an example begin before its earlier
ones are finished, but the lowest successful round counts; searches that can skip ahead use empty slots for
lookahead (see lookahead.py); and at the end the batch becomes smaller, if that changes no bit (see
smaller_batch.py). So the result does not depend on order, splitting or interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import cast, final

import torch
from torch import Tensor

from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State, is_adversarial, query_model
from allrounder.attacks.search.lookahead import LookAhead
from allrounder.attacks.search.smaller_batch import MIN_WIDTH, SmallerBatch, choose_smaller_width
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool

CONFIRM_EVERY = 32
"""The number of steps after which candidates are confirmed, however few; an interruption loses them."""


@final
@dataclass(frozen=True, eq=False)
class Examples:
    """Examples to attack: images, labels, natural logits, and the row numbers that select random numbers."""

    x: Images
    y: Labels
    natural: Logits
    rows: Labels

    def __len__(self) -> int:
        return len(self.y)

    def select(self, index: Labels | slice) -> Examples:
        """The examples at the given positions."""
        return Examples(self.x[index], self.y[index], self.natural[index], self.rows[index])


@final
@dataclass(frozen=True, eq=False)
class SearchResults:
    """The results so far: without success, `x` is the image itself and `predicted` the label."""

    done: PerExampleBool
    predicted: Labels
    """The prediction of the original network at `x`."""
    x: Images
    passes: Passes = field(default_factory=Passes)
    """The passes spent on all examples."""

    @classmethod
    def empty(cls, examples: Examples) -> SearchResults:
        """The results before the first query."""
        done = torch.zeros(len(examples), dtype=torch.bool)
        return cls(done, examples.y.cpu().clone(), examples.x.clone())


@final
@dataclass(eq=False)
class RoundTask:
    """A round of an example; a round that was interrupted by a candidate has a state."""

    example: int
    round: int
    state: State | None = None
    num_queries: int = 0


@final
@dataclass(eq=False)
class ExampleProgress:
    """The progress of an example."""

    num_begun: int = 0
    """The number of rounds that have begun."""
    undecided: set[int] = field(default_factory=set[int])
    """The rounds that are not decided yet."""
    has_success: bool = False
    """Whether the last round has an adversarial image, confirmed or not."""


@final
@dataclass(eq=False)
class SearchDriver:
    """Runs a search on a network, and confirms its candidates on the original network.

    `network` may be a folded copy of `original`; an example counts as fooled only if `original`
    misclassifies it.
    """

    search: Search
    network: Classifier
    original: Classifier
    threat: Threat
    rng: Rng
    batch_size: int
    """The number of slots, until few examples are left."""
    passes: Passes = field(default_factory=Passes)
    """The passes so far, in batches of this size."""

    def run(
        self, examples: Examples, report: Callable[[SearchResults], None] = lambda results: None
    ) -> SearchResults:
        """Search all examples; calls `report` with the results after each step, which may raise to stop."""
        self.examples = examples
        self.num_rounds = self.search.num_rounds(examples.natural.shape[1])
        self.progress = [ExampleProgress() for _ in range(len(examples))]
        self.queue = deque(range(len(examples)))
        self.resumed = deque[RoundTask]()
        self.slots: list[RoundTask | None] = [None] * self.batch_size
        self.lookahead = cast(LookAhead | None, None)
        self.smaller_batch = cast(SmallerBatch | None, None)
        self.min_width = MIN_WIDTH
        self.candidates: list[tuple[RoundTask, Tensor]] = []
        # With one class a search may have no round; then no example is fooled.
        done = torch.full((len(examples),), self.num_rounds == 0)
        self.results = replace(SearchResults.empty(examples), done=done)
        if bool(done.all()):
            report(self.results)
            return self.results
        # Empty slots hold the first example, or their last one; their results are discarded.
        first = self._begin_round(RoundTask(0, 0))
        self.state = {
            name: row.repeat(self.batch_size, *[1] * (row.dim() - 1)) for name, row in first.items()
        }
        num_steps = 0
        while not bool(done.all()):
            for phase, needs_grad in enumerate(self.search.needs_grad_cycle):
                self._fill_slots(phase)
                if phase == 0:
                    self.smaller_batch = self._try_smaller_batch()
                if self._occupied():
                    self._query(needs_grad)
            self._use_smaller_batch()
            num_steps += 1
            is_full = len(self.candidates) >= self.batch_size
            if is_full or not self._occupied() or num_steps % CONFIRM_EVERY == 0:
                self._confirm_candidates()
            self.results = replace(self.results, passes=self.passes)
            report(self.results)
        return self.results

    def _begin_round(self, task: RoundTask) -> State:
        """The initial state of a round, always computed in a batch of one, so that it never varies."""
        example = self.examples.select(slice(task.example, task.example + 1))
        rng = self.rng.fold_in("round", task.round).per_example(example.rows.cpu())
        return self.search.begin(
            RoundInit(example.x, example.y, example.natural, self.threat, rng, task.round)
        )

    def _occupied(self) -> list[int]:
        return [slot for slot, task in enumerate(self.slots) if task is not None]

    def _fill_slots(self, phase: int) -> None:
        """Put rounds that wait for this phase of the query cycle into the empty slots."""
        for slot, current in enumerate(self.slots):
            if current is None and (task := self._next_task(phase)) is not None:
                self.slots[slot] = task
                self.lookahead = None
                state = self._begin_round(task) if task.state is None else task.state
                for name, row in state.items():
                    self.state[name][slot] = row[0]

    def _next_task(self, phase: int) -> RoundTask | None:
        for _ in range(len(self.resumed)):
            task = self.resumed.popleft()
            if task.num_queries % len(self.search.needs_grad_cycle) == phase:
                return task
            self.resumed.append(task)
        while phase == 0 and self.queue:
            example = self.queue.popleft()
            progress = self.progress[example]
            if progress.num_begun < self.num_rounds and not progress.has_success:
                task = RoundTask(example, progress.num_begun)
                progress.num_begun += 1
                progress.undecided.add(task.round)
                # An example's next round comes after a round of all the others.
                self.queue.append(example)
                return task
        return None

    def _query(self, needs_grad: bool) -> None:
        """Make one query for the whole batch, collect candidates and free the slots of finished rounds."""
        self.lookahead = self.lookahead or self._look_ahead()
        lookahead = self.lookahead
        before = self.state if lookahead is None else lookahead.state
        result = query_model(self.search, self.network, before, self.threat, needs_grad)
        self._count(result.passes, len(self.slots))
        # A sum of images is not finite if one number is not; a sum of logits might overflow.
        if not bool(result.x.sum().isfinite() & result.logits.isfinite().all()):
            fix = "check the network's gradients"
            raise self._error(f"images or logits are not finite, expected finite numbers; {fix}")
        fooled = is_adversarial(result, before, self.threat)
        after = self.search.tell(before, result, self.threat)
        finished = self.search.is_finished(after)
        if (smaller := self.smaller_batch) is not None:
            self._count(smaller.compare(before, result, after, needs_grad), len(smaller.rows))
        rows = list(range(len(self.slots)))
        if lookahead is None:
            self.state = after
        else:
            ends = fooled | finished | self.search.accepted(before, after)
            self.state, rows = lookahead.follow(self.state, after, _to_list(ends))
        self._apply_result(result, _to_list(fooled), _to_list(finished), rows)

    def _look_ahead(self) -> LookAhead | None:
        """A lookahead for the empty slots, if there are any and the search can skip ahead."""
        occupied, width = self._occupied(), len(self.slots)
        if len(occupied) == width or not self._can_skip_ahead():
            return None
        return LookAhead(self.search, self.state, occupied, width)

    def _can_skip_ahead(self) -> bool:
        no_steps = torch.zeros_like(self.state["y"])
        return self.search.skip_ahead(self.state, no_steps) is not None

    def _try_smaller_batch(self) -> SmallerBatch | None:
        """A smaller batch to compare with in this cycle, if at least half of the slots will stay empty."""
        occupied = self._occupied()
        width = choose_smaller_width(len(self.slots), len(occupied), self.min_width)
        if width is None or not occupied or self.queue or self.resumed or self._can_skip_ahead():
            return None
        empty = [slot for slot, task in enumerate(self.slots) if task is None]
        return SmallerBatch(self.search, self.network, self.threat, (occupied + empty)[:width])

    def _use_smaller_batch(self) -> None:
        """Keep only the slots of the smaller batch if it gave the same bits in this cycle."""
        smaller, self.smaller_batch = self.smaller_batch, None
        if smaller is None or not set(self._occupied()) <= set(smaller.rows):
            return
        if not smaller.is_equal:
            self.min_width = 2 * len(smaller.rows)
            return
        rows = torch.tensor(smaller.rows, device=self.state["y"].device)
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
        self.slots = [self.slots[row] for row in smaller.rows]

    def _count(self, passes: Passes, width: int) -> None:
        """Add the passes of a batch with `width` rows."""
        self.passes += passes * Fraction(width, self.batch_size)

    def _apply_result(
        self, result: QueryResult, fooled: list[bool], finished: list[bool], rows: list[int]
    ) -> None:
        """Update each slot with the last row that counts for it."""
        lookahead = self.lookahead
        for slot, row in enumerate(rows):
            task = self.slots[slot]  # read again in each turn: a candidate empties slots of later rounds
            if task is None:
                continue
            task.num_queries += 1 if lookahead is None else 1 + lookahead.rows[slot].index(row)
            if fooled[row] or finished[row]:
                self.slots[slot] = self.lookahead = None
            if fooled[row]:
                task.state = {name: tensor[slot : slot + 1].clone() for name, tensor in self.state.items()}
                self._add_candidate(task, result.x[row].clone())
            elif finished[row]:
                if task.num_queries != (expected := self.search.num_queries()):
                    got = f"ended a round after {task.num_queries} queries, expected {expected}"
                    raise self._error(f"{got}; this is a bug in the attack")
                self._finish_round(task)

    def _add_candidate(self, task: RoundTask, x: Tensor) -> None:
        """Store an image to be confirmed, and drop the later rounds of its example."""
        progress = self.progress[task.example]
        progress.has_success = True
        progress.num_begun = task.round + 1
        progress.undecided = {number for number in progress.undecided if number <= task.round}

        def counts(other: RoundTask) -> bool:
            return other.example != task.example or other.round < task.round

        self.slots = [other if other is None or counts(other) else None for other in self.slots]
        self.resumed = deque(filter(counts, self.resumed))
        self.candidates = [candidate for candidate in self.candidates if counts(candidate[0])] + [(task, x)]

    def _confirm_candidates(self) -> None:
        """Classify candidates with the original network; a round that is not confirmed resumes."""
        candidates = self.candidates[: self.batch_size]
        self.candidates = self.candidates[self.batch_size :]
        if not candidates:
            return
        padding = [candidates[0][1]] * (self.batch_size - len(candidates))
        with torch.no_grad():
            logits = self.original(torch.stack([x for _, x in candidates] + padding))
        if not bool(logits.isfinite().all()):
            got = "the original network's logits are not finite"
            raise self._error(f"{got}, expected finite numbers; check the network")
        self.passes += Passes(forwards=1)
        for (task, x), prediction in zip(candidates, logits.argmax(1), strict=False):
            if prediction != self.examples.y[task.example]:
                self.results.predicted[task.example] = prediction
                self.results.x[task.example] = x
                self._finish_round(task)
            else:
                self._resume_round(task)

    def _resume_round(self, task: RoundTask) -> None:
        """Continue a round whose candidate was not confirmed."""
        assert task.state is not None
        self.progress[task.example].has_success = False
        if task.example not in self.queue:
            self.queue.append(task.example)
        if bool(self.search.is_finished(task.state)):
            self._finish_round(task)
        else:
            self.resumed.append(task)

    def _finish_round(self, task: RoundTask) -> None:
        progress = self.progress[task.example]
        progress.undecided.discard(task.round)
        no_round_left = progress.has_success or progress.num_begun == self.num_rounds
        self.results.done[task.example] = no_round_left and not progress.undecided

    def _error(self, problem: str) -> ThreatError:
        return ThreatError(f"{self.search} under {self.threat}: {problem}")


def _to_list(flags: PerExampleBool) -> list[bool]:
    return cast(list[bool], flags.tolist())
