from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.search.base import Search
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.attacks.square import Square
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes

THREAT = Threat.parse("Linf:0.08")
SEARCHES = [
    Apgd(steps=6),
    Apgd(steps=4, surrogate="dlr", targets=3),
    Fab(steps=4, targets=2),
    Square(queries=15),
]
W = torch.randn(5, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def network(x: Tensor) -> Tensor:
    """Classifies every image by itself, so that results do not depend on the batch."""
    return torch.stack([(W * image.flatten()).sum(1) + image.square().sum() * W[:, 0] for image in x])


def make_examples(n: int = 14) -> Examples:
    x = torch.rand(n, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    natural = network(x)
    return Examples(x, natural.argmax(1), natural, torch.arange(100, 100 + n))


def run_search(search: Search, examples: Examples, width: int = 4, plain=network) -> SearchResults:
    return SearchDriver(search, network, plain, THREAT, Rng(0), width).run(examples)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_driver_finds_the_same_images_as_one_batch(search: Search):
    examples = make_examples()
    alone = search.run(network, examples.x, examples.y, THREAT, Rng(0).per_example(examples.rows))
    result = run_search(search, examples)
    assert alone.fooled is not None and 0 < int(alone.fooled.sum()) < len(examples)
    assert torch.equal(result.predicted != examples.y, alone.fooled) and result.done.all()
    assert torch.equal(result.x, alone.x) and torch.equal(result.predicted, network(result.x).argmax(1))


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_order_and_batching_do_not_change_results(search: Search):
    examples = make_examples()
    whole, order = run_search(search, examples), Rng(7).permutation(len(examples))
    shuffled = run_search(search, examples.select(order))
    assert torch.equal(shuffled.x, whole.x[order])
    halves = [run_search(search, examples.select(part)).x for part in torch.arange(len(examples)).split(5)]
    assert torch.equal(torch.cat(halves), whole.x)


def test_fooled_examples_cost_no_further_passes():
    examples = make_examples()
    search = Apgd(steps=50)
    result = run_search(search, examples, width=1)
    robust = int((result.predicted == examples.y).sum())
    assert 0 < robust < len(examples)
    assert result.passes.backwards < 51 * len(examples)
    assert result.passes.backwards >= 51 * robust


def test_unconfirmed_candidates_do_not_count_as_fooled():
    examples = make_examples()
    labels = {tuple(image.flatten().tolist()): None for image in examples.x}
    assert len(labels) == len(examples)

    def stubborn(x: Tensor) -> Tensor:
        # Whatever it is shown, it answers with the natural logits of the closest image.
        closest = torch.cdist(x.flatten(1), examples.x.flatten(1)).argmin(1)
        return examples.natural[closest]

    result = run_search(Apgd(steps=6), examples, plain=stubborn)
    assert torch.equal(result.predicted, examples.y) and result.done.all()
    assert torch.equal(result.x, examples.x)


@pytest.mark.parametrize("width", [4, 40])
def test_reported_results_are_final(width: int):
    examples, reports = make_examples(), []
    driver = SearchDriver(Apgd(steps=4, surrogate="dlr", targets=3), network, network, THREAT, Rng(0), width)
    result = driver.run(examples, lambda h: reports.append(replace(h, done=h.done.clone(), x=h.x.clone())))
    counts, forwards = [int(h.done.sum()) for h in reports], [h.passes.forwards for h in reports]
    assert (
        counts == sorted(counts)
        and counts[0] == 0
        and counts[-1] == len(examples)
        and 0 < counts[-2] < len(examples)
    )
    assert forwards == sorted(set(forwards)) and reports[-1].passes == result.passes == driver.passes
    for h in reports:
        assert torch.equal(h.x[h.done], result.x[h.done])


def test_outputs_that_are_not_finite_raise_an_error():
    examples = make_examples()

    def hidden(x: Tensor) -> Tensor:
        """Its gradients are no numbers, which its logits do not show."""
        flat = (0 * x).sum(dim=(1, 2, 3), keepdim=True).sqrt()
        return network((x + flat).nan_to_num())

    for search, nan_network in ((Apgd(steps=3), lambda x: network(x) * float("nan")), (Fab(steps=3), hidden)):
        with pytest.raises(ThreatError, match=r"not finite"):
            SearchDriver(search, nan_network, network, THREAT, Rng(0), 4).run(examples)


def test_no_examples_need_no_passes():
    examples = make_examples().select(torch.arange(0))
    result = run_search(Apgd(steps=3), examples)
    assert len(result.done) == 0 and result.passes == Passes()


@pytest.mark.parametrize("search", [Apgd(steps=3, targets=2), Fab(steps=3), Fab(steps=3, targets=0)], ids=str)
def test_network_with_one_class_has_no_rounds(search: Search):
    x, reports = make_examples().x, []
    examples = Examples(x, torch.zeros(14, dtype=torch.int64), torch.zeros(14, 1).double(), torch.arange(14))
    result = SearchDriver(search, network, network, THREAT, Rng(0), 4).run(examples, reports.append)
    assert search.num_rounds(1) == 0 and result.done.all() and reports == [result]
    assert (
        torch.equal(result.x, x) and torch.equal(result.predicted, examples.y) and result.passes == Passes()
    )
