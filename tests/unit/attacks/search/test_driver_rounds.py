"""Batches whose slots hold several rounds of an example: the lowest successful round counts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State, is_adversarial, query_model
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.unit.attacks.test_apgd import OneByOne

# Rounds of real searches

NETWORK = OneByOne(pixels=36).requires_grad_(False)
BUDGETS = [Threat.parse("Linf:0.05"), Threat.parse("Linf:0.1")]
SEARCHES = pytest.mark.parametrize(
    "search", [Apgd(steps=4, surrogate="dlr", targets=3), Fab(steps=3, targets=3)], ids=str
)


def make_examples(n: int = 12) -> Examples:
    x = torch.rand(n, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    natural = NETWORK(x)
    return Examples(x, natural.argmax(1), natural, torch.arange(100, 100 + n))


def run_search(search: Search, examples: Examples, width: int, threat: Threat) -> SearchResults:
    return SearchDriver(search, NETWORK, NETWORK, threat, Rng(0), width).run(examples)


@SEARCHES
@pytest.mark.parametrize("threat", BUDGETS, ids=str)
def test_parallel_rounds_find_the_same_as_sequential_rounds(search: Search, threat: Threat):
    examples = make_examples()
    for some in (examples, examples.select(torch.tensor([7, 2, 9]))):
        narrow = run_search(search, some, 1, threat)
        for width in (3, 16, 50):
            wide = run_search(search, some, width, threat)
            assert torch.equal(wide.x, narrow.x) and torch.equal(wide.predicted, narrow.predicted)
        for i in range(len(some)):
            one = some.select(torch.tensor([i]))
            alone = search.run(NETWORK, one.x, one.y, threat, Rng(0).per_example(one.rows))
            assert torch.equal(narrow.x[i], alone.x[0])
            assert narrow.predicted[i] == NETWORK(alone.x).argmax()


@SEARCHES
def test_examples_cover_every_order_of_success(search: Search):
    """Fooled in the first round, there but sooner in a later one, only in a later one, and never."""
    examples, kinds = make_examples(), []
    for threat in BUDGETS:
        when = torch.full((3, len(examples)), 99)
        for number in range(3):
            rng = Rng(0).fold_in("round", number).per_example(examples.rows)
            state = search.begin(RoundInit(examples.x, examples.y, examples.natural, threat, rng, number))
            for asked, gradient in enumerate(5 * search.needs_grad_cycle):
                result = query_model(search, NETWORK, state, threat, gradient)
                is_fooled = is_adversarial(result, state, threat) & ~search.is_finished(state)
                when[number] = torch.where(is_fooled, when[number].clamp(max=asked), when[number])
                state = search.tell(state, result, threat)
            assert search.is_finished(state).all()
        first, later = when[0], when[1:].amin(0)
        fooled, only_later = first < 99, (first == 99) & (later < 99)
        kinds.append([fooled, fooled & (later < first), only_later, ~fooled & ~only_later])
    assert all((one | other).any() for one, other in zip(*kinds, strict=True))


@pytest.mark.parametrize(
    ("search", "round_"),
    [(Apgd(steps=6, targets=3), Passes(7, 7)), (Fab(steps=4, targets=3), Passes(8, 4))],
    ids=str,
)
def test_idle_slots_are_used_for_later_rounds(search: Search, round_: Passes):
    # In so small a ball nothing is found, and every round goes on to its end.
    examples, small = make_examples(2), Threat.parse("Linf:1e-9")
    for width, turns in ((1, 6), (2, 3), (3, 2), (4, 2), (6, 1), (51, 1)):
        spent = Passes(turns * round_.forwards, turns * round_.backwards)
        assert run_search(search, examples, width, small).passes == spent


# Rounds of a scripted search

Where = tuple[int, int, int]
"""A point, a round, and a question of the round, counted from 0."""
UNIT = 1 / 1024


class Script:
    """A network that recognises which point, round and question an image belongs to, and calls some of them
    by a wrong class."""

    def __init__(self, wrong: set[Where], prediction: int):
        self.wrong, self.prediction, self.images = wrong, prediction, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.images += len(x)
        read = ((x.detach()[:, 0, 0] - 0.5) / UNIT).round().long().tolist()
        classes = [self.prediction * (not astray and tuple(at) in self.wrong) for *at, astray in read]
        return torch.eye(3).double()[classes] + 0 * x.sum(dim=(1, 2, 3))[:, None]


@dataclass(frozen=True)
class Scripted(Search):
    """Queries images that encode its position, and last, whether a result ever had the wrong kind."""

    length: int = 6
    count: int = 3
    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (False,)

    def address(self) -> str:
        return f"Scripted({self.length}, {self.count})"

    def num_rounds(self, classes: int) -> int:
        return self.count

    def begin(self, round_init: RoundInit) -> State:
        zero = torch.zeros_like(round_init.y)
        return {
            "x": round_init.x,
            "y": round_init.y,
            "round": zero + round_init.round,
            "asked": zero,
            "astray": zero.clone(),
        }

    def ask(self, state: State, threat: Threat) -> Tensor:
        x = state["x"].clone()
        x[:, 0, 0, 1:] += UNIT * torch.stack([state["round"], state["asked"], state["astray"]], 1)
        return x

    def loss(self, state: State, logits: Tensor) -> Tensor:
        return logits.sum(dim=1)

    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        wanted = torch.tensor(self.needs_grad_cycle)[state["asked"] % len(self.needs_grad_cycle)]
        astray = state["astray"] | (wanted != (result.gradient is not None)).long()
        return state | {"asked": state["asked"] + 1, "astray": astray}

    def is_finished(self, state: State) -> Tensor:
        return state["asked"] >= self.length

    def num_queries(self) -> int:
        return self.length


class Alternating(Scripted):
    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (True, False)


BOTH = pytest.mark.parametrize("kind", [Scripted, Alternating])
WIDTHS = (1, 2, 3, 5, 40)


def follow(search: Scripted, finds: set[Where], refused: set[Where], n: int, width: int):
    """Run a driver on n examples: where each was fooled, and the number of queries in whole batches."""
    x = torch.full((n, 1, 1, 4), 0.5, dtype=torch.float64)
    x[:, 0, 0, 0] += UNIT * torch.arange(n)
    natural = torch.eye(3).double()[[0] * n]
    asked, plain = Script(finds | refused, 1), Script(finds, 2)
    driver = SearchDriver(search, asked, plain, Threat.parse("Linf:0.08"), Rng(0), width)
    results = driver.run(Examples(x, torch.zeros(n, dtype=torch.int64), natural, torch.arange(n)))
    assert results.done.all() and results.passes.forwards * width == asked.images + plain.images
    read = ((results.x[:, 0, 0] - 0.5) / UNIT).round().long().tolist()
    fooled = (results.predicted == 2).tolist()
    assert all(
        results.predicted[i] == 0 and torch.equal(results.x[i], x[i]) for i in range(n) if not fooled[i]
    )
    return [
        (at[1], at[2]) if is_fooled else None for at, is_fooled in zip(read, fooled, strict=True)
    ], Fraction(asked.images, width)


def expected(search: Scripted, finds: set[Where], n: int) -> list[tuple[int, int] | None]:
    """Round by round, question by question: the first find that is confirmed."""
    order = [(number, asked) for number in range(search.count) for asked in range(search.length)]
    return [next((at for at in order if (point, *at) in finds), None) for point in range(n)]


@BOTH
def test_lowest_successful_round_counts(kind: type[Scripted]):
    for width in WIDTHS:
        assert follow(kind(), {(0, 0, 5), (0, 1, 2)}, set(), 1, width)[0] == [(0, 5)]
        assert follow(kind(), {(0, 1, 2), (0, 2, 0)}, set(), 1, width)[0] == [(1, 2)]
        assert follow(kind(), {(0, 2, 4)}, set(), 1, width)[0] == [(2, 4)]
    # The second round is over after its third question and leaves the first to itself.
    assert follow(kind(), {(0, 0, 5), (0, 1, 2)}, set(), 1, 3)[1] == 6


@BOTH
def test_unconfirmed_candidate_changes_nothing(kind: type[Scripted]):
    for width in WIDTHS:
        # Of the first round: later ones begin again, and their finds count as if nothing had been.
        assert follow(kind(), {(0, 1, 2)}, {(0, 0, 3)}, 1, width)[0] == [(1, 2)]
        # Of the last question of a round.
        assert follow(kind(), {(0, 1, 2)}, {(0, 0, 5)}, 1, width)[0] == [(1, 2)]
        # After a later round had been confirmed, which is found and confirmed once more.
        assert follow(kind(), {(0, 2, 1), (1, 0, 0)}, {(0, 0, 4), (0, 1, 5)}, 2, width)[0] == [(2, 1), (0, 0)]
        # Of a later round, before an earlier one breaks the point; nor do still later ones count.
        assert follow(kind(), {(0, 0, 4), (0, 2, 3)}, {(0, 1, 0)}, 1, width)[0] == [(0, 4)]
        # The same, while that round waits for a slot.
        finds = {(0, 0, 4), (0, 1, 1), (1, 0, 0)}
        assert follow(kind(), finds, {(0, 1, 0)}, 2, width)[0] == [(0, 4), (0, 0)]
        # Of every question of all rounds.
        every = {(p, r, q) for p in range(2) for r in range(3) for q in range(6)}
        assert follow(kind(), set(), every, 2, width)[0] == [None, None]


@BOTH
@pytest.mark.parametrize("at", range(5))
def test_round_resumes_where_it_was_interrupted(kind: type[Scripted], at: int):
    """In either phase of its cycle; a result of the wrong kind would lead it astray."""
    for later in range(at + 1, 6):
        for width in WIDTHS:
            search, others = kind(count=1), {(p, 0, 2 * p) for p in (1, 2)}
            where, asked = follow(search, {(0, 0, later)} | others, {(0, 0, at)}, 3, width)
            assert where == [(0, later), (0, 2), (0, 4)]
            assert asked <= later + 1 + 3 + 5
    assert follow(kind(count=1), {(0, 0, 5)}, {(0, 0, at)}, 1, 4) == ([(0, 5)], 6)


WHERE = st.sets(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 4)), max_size=12)


@given(
    WHERE,
    WHERE,
    st.sampled_from([Scripted, Alternating]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 14),
)
def test_any_script_gives_the_results_of_sequential_rounds(
    finds: set[Where], refused: set[Where], kind: type[Scripted], length: int, n: int, width: int
):
    search = kind(length=length)
    where, asked = follow(search, finds, refused - finds, n, width)
    assert where == expected(search, finds, n)
    if not refused:
        # Slots are shared, so many cost no more questions than one, but for the trials of smaller batches.
        assert asked <= follow(search, finds, set(), n, 1)[1] + 1
