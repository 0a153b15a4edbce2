"""Batches that become smaller near the end of a search change its time and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.search import driver as drivers
from allrounder.attacks.search.base import Search, query_model
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.attacks.search.smaller_batch import MIN_WIDTH, SmallerBatch, choose_smaller_width
from allrounder.attacks.square import Square
from allrounder.inference.fast_conv import with_fast_convs
from allrounder.inference.fold import folded_copy
from allrounder.models.small_cnn import SmallCnn
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_apgd import OneByOne

NETWORK = OneByOne(pixels=36).requires_grad_(False)
THREAT = Threat.parse("Linf:0.05")
SEARCHES = pytest.mark.parametrize(
    "search",
    [Apgd(steps=12), Apgd(steps=6, surrogate="dlr", targets=3), Fab(steps=5, targets=3)],
    ids=str,
)


class Recorded:
    """A network that records the sizes of its batches. `change` is added to the logits, given a size."""

    def __init__(self, change: Callable[[int], float] = lambda size: 0.0):
        self.change, self.sizes = change, list[int]()

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return NETWORK(x) + self.change(len(x))


def make_examples(n: int = 12) -> Examples:
    x = torch.rand(n, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    natural = NETWORK(x)
    return Examples(x, natural.argmax(1), natural, torch.arange(100, 100 + n))


def run_search(
    search: Search, network: Callable[[Tensor], Tensor], width: int = 32, threat: Threat = THREAT
) -> SearchResults:
    return SearchDriver(search, network, NETWORK, threat, Rng(0), width).run(make_examples())


@pytest.mark.parametrize(
    ("width", "occupied", "smaller"),
    [
        (32, 17, None),
        (32, 16, 16),
        (32, 9, 16),
        (32, 5, 8),
        (32, 1, 4),
        (4, 1, None),
        (12, 1, 6),
        (25, 1, None),
    ],
)
def test_width_is_halved_while_it_holds_all_examples(width: int, occupied: int, smaller: int | None):
    assert choose_smaller_width(width, occupied, MIN_WIDTH) == smaller


@SEARCHES
def test_smaller_batches_give_the_results_of_the_fixed_size(search: Search, monkeypatch: pytest.MonkeyPatch):
    network = Recorded()
    result = run_search(search, network)
    assert network.sizes[0] == 32 and network.sizes[-1] < 32 and min(network.sizes) >= MIN_WIDTH
    assert result.passes.forwards < len(network.sizes)
    monkeypatch.setattr(drivers, "choose_smaller_width", lambda *widths: None)
    fixed = Recorded()
    expected = run_search(search, fixed)
    assert set(fixed.sizes) == {32} and 0 < int((expected.predicted != make_examples().y).sum()) < 12
    assert torch.equal(result.x, expected.x) and torch.equal(result.predicted, expected.predicted)


@SEARCHES
def test_batches_stay_if_another_size_changes_a_bit(search: Search):
    network = Recorded(lambda size: 1e-12 if size < 32 else 0.0)
    plain = run_search(search, Recorded())
    result = run_search(search, network)
    # A trial of every size, each with the queries of one cycle; all else in whole batches.
    cycle = len(search.needs_grad_cycle)
    assert sum(size < 32 for size in network.sizes) <= 3 * cycle and network.sizes[-1] == 32
    assert torch.equal(result.x, plain.x) and torch.equal(result.predicted, plain.predicted)


def test_smallest_size_with_the_same_bits_is_used():
    network = Recorded(lambda size: 1e-12 if size < 16 else 0.0)
    run_search(Apgd(steps=12), network, width=64, threat=Threat.parse("Linf:1e-9"))
    # 12 examples: 64 slots become 16, as a batch of 16 holds them and has the same bits.
    assert network.sizes[:2] == [64, 16] and set(network.sizes[2:]) == {16}
    few = Recorded(lambda size: 1e-12 if size < 16 else 0.0)
    SearchDriver(Apgd(steps=12), few, NETWORK, Threat.parse("Linf:1e-9"), Rng(0), 64).run(make_examples(3))
    assert few.sizes[:6] == [64, 4, 64, 8, 64, 16] and set(few.sizes[6:]) == {16}


def test_gradients_and_states_are_compared_too():
    class OtherGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, *gradients: Tensor) -> Tensor:
            return gradients[0] * (1 + 1e-12 * (len(gradients[0]) < 32))

    network = Recorded()
    run_search(Apgd(steps=6), lambda x: network(OtherGradient.apply(x)))
    assert network.sizes[-1] == 32

    search = Apgd(steps=6)
    examples = make_examples(4)
    trial = SmallerBatch(search, NETWORK, THREAT, (0, 1))
    driver = SearchDriver(search, NETWORK, NETWORK, THREAT, Rng(0), 4)
    driver.run(examples)
    before = driver.state
    result = query_model(search, NETWORK, before, THREAT, True)
    after = search.tell(before, result, THREAT)
    assert trial.compare(before, result, after, True) == result.passes and trial.is_equal
    other = after | {"x": after["x"] + 1e-12}
    trial.compare(before, result, other, True)
    assert not trial.is_equal


def test_random_network_draws_the_same_numbers_and_keeps_its_batches():
    drawn: list[Tensor] = []

    def noisy(x: Tensor) -> Tensor:
        noise = torch.rand(len(x), 1, dtype=x.dtype)
        if len(x) == 32:
            drawn.append(noise)
        return NETWORK(x) + 1e-9 * noise

    with Rng(5).seed_global():
        run_search(Apgd(steps=4), noisy, threat=Threat.parse("Linf:1e-9"))
        stream = torch.cat(drawn)
    with Rng(5).seed_global():
        assert torch.equal(stream, torch.cat([torch.rand(32, 1, dtype=torch.float64) for _ in drawn]))


def test_networks_that_support_some_sizes_only_keep_their_batches():
    sizes: list[int] = []

    def grouped(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return NETWORK(x.view(-1, 8, *x.shape[1:]).flatten(0, 1))

    result = run_search(Apgd(steps=12), grouped, width=32, threat=Threat.parse("Linf:1e-9"))
    few = SearchDriver(Apgd(steps=12), grouped, NETWORK, Threat.parse("Linf:1e-9"), Rng(0), 32)
    few.run(make_examples(3))
    assert result.done.all() and few.results.done.all()
    assert 4 in sizes and sizes[-1] == 8, "a trial of 4 fails, one of 8 does not"


def test_gradients_that_are_all_zero_prove_nothing():
    network = Recorded()

    def saturated(x: Tensor) -> Tensor:
        return network(x.detach()) + 0 * x.sum(dim=(1, 2, 3))[:, None]

    run_search(Apgd(steps=6), saturated)
    assert network.sizes[-1] == 32


def test_square_looks_ahead_instead():
    network = Recorded()
    run_search(Square(queries=10), network)
    assert set(network.sizes) == {32}


def test_networks_with_fast_layers_keep_their_results(monkeypatch: pytest.MonkeyPatch):
    """In float32 and with real layers, whether their bits depend on the size of a batch or not."""
    model = SmallCnn(width=16).build(10, (1, 28, 28)).eval()
    x = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    folded = folded_copy(model, x)
    assert folded is not None
    fast = with_fast_convs(folded, x[:2])
    with torch.no_grad():
        natural = model(x)
    examples = Examples(x, natural.argmax(1), natural, torch.arange(6))

    def run() -> SearchResults:
        return SearchDriver(Apgd(steps=5), fast, model, Threat.parse("Linf:0.02"), Rng(0), 32).run(examples)

    result = run()
    monkeypatch.setattr(drivers, "choose_smaller_width", lambda *widths: None)
    expected = run()
    assert torch.equal(result.x, expected.x) and torch.equal(result.predicted, expected.predicted)
