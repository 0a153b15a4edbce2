from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.data.base import Subset, TensorSplit
from allrounder.data.datasets.embedded import Embedded
from allrounder.data.splits import hold_out, stratified_indices, stratified_order
from allrounder.rng import Rng


def labelled(labels):
    y = torch.tensor(labels)
    return TensorSplit(torch.zeros(len(y), 1, 1, 1), y, int(y.max()) + 1)


def tensors(n=12, k=3):
    return labelled([i % k for i in range(n)])


LABELS = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 5]), min_size=1, max_size=60)
SEEDS = st.integers(0, 20)


@given(LABELS, SEEDS, st.data())
def test_smaller_sample_is_a_prefix_of_every_larger_one(labels, seed, data):
    split = labelled(labels)
    counts = sorted(data.draw(st.lists(st.integers(1, len(labels)), min_size=2, max_size=5)))
    chosen = [stratified_indices(split, count, seed) for count in counts]
    for (small, large), count in zip(pairwise(chosen), counts, strict=False):
        assert len(small) == count
        assert torch.equal(large[:count], small)


def test_first_100_of_1000_sampled_images_are_the_sample_of_100():
    test = Embedded().load().test
    large, small = (stratified_indices(test, count, 0) for count in (1000, 100))
    assert torch.equal(large[:100], small)
    assert torch.bincount(test.labels[small]).tolist() == [10] * 10
    assert torch.bincount(test.labels[large]).tolist() == [100] * 10


@given(LABELS, SEEDS, st.data())
def test_sample_has_no_duplicates_and_can_be_complete(labels, seed, data):
    count = data.draw(st.integers(1, len(labels)))
    chosen = stratified_indices(labelled(labels), count, seed)
    assert chosen.dtype == torch.int64 and len(set(chosen.tolist())) == count
    assert sorted(stratified_indices(labelled(labels), len(labels), seed).tolist()) == list(
        range(len(labels))
    )


@given(st.integers(1, 8), st.integers(1, 12), SEEDS, st.data())
def test_classes_of_one_size_differ_by_at_most_one_image(k, each, seed, data):
    split = tensors(k * each, k)
    count = data.draw(st.integers(1, k * each))
    counts = torch.bincount(split.labels[stratified_indices(split, count, seed)], minlength=k)
    assert counts.max() - counts.min() <= 1


@given(LABELS, SEEDS, st.data())
def test_classes_of_any_size_keep_their_shares(labels, seed, data):
    split, n = labelled(labels), len(labels)
    count = data.draw(st.integers(1, n))
    counts = torch.bincount(split.labels[stratified_indices(split, count, seed)], minlength=6)
    sizes = torch.bincount(split.labels, minlength=6)
    # Every class is within half an image of one common share, which is off by half an image for each class.
    slack = 0.5 + sizes / n * int((sizes > 0).sum()) / 2
    assert ((counts - count * sizes / n).abs() <= slack + 1e-6).all()


def test_another_seed_gives_another_sample():
    split = tensors(300, 10)
    chosen = [set(stratified_indices(split, 50, seed).tolist()) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_sample_and_held_out_images_differ():
    split = tensors(300, 10)
    assert positions(hold_out(split, 50, Rng(0))[1]) != set(stratified_indices(split, 50, 0).tolist())


@pytest.mark.parametrize("count", [0, -1, 13])
def test_sample_of_zero_or_too_many_images_is_refused(count):
    with pytest.raises(ValueError, match=f"subset: got {count} of 12 images, expected 1 to 12"):
        stratified_indices(tensors(12), count, 0)


@given(LABELS, SEEDS)
def test_stratified_order_equals_a_slow_implementation(labels, seed):
    order = Rng(seed).permutation(len(labels)).tolist()
    seen, place = dict.fromkeys(labels, 0), {}
    for position in order:
        y = labels[position]
        place[position] = Fraction(2 * seen[y] + 1, 2 * labels.count(y))
        seen[y] += 1
    expected = sorted(order, key=place.__getitem__)
    assert stratified_order(torch.tensor(labels), torch.tensor(order)).tolist() == expected


@pytest.mark.parametrize(
    ("n", "k", "count", "seed", "digest"),
    [(300, 7, 100, 1, "a8e250689c389349"), (57, 5, 20, 4, "58acb7f48069955f")],
)
def test_held_out_images_have_the_recorded_digest(n, k, count, seed, digest):
    split = labelled(torch.randint(0, k, (n,), generator=torch.Generator().manual_seed(seed)).tolist())
    rest, validation = hold_out(split, count, Rng(seed).fold_in("validation"))
    assert isinstance(rest, Subset) and isinstance(validation, Subset)
    result = rest.index.numpy().tobytes() + validation.index.numpy().tobytes()
    assert hashlib.sha256(result).hexdigest()[:16] == digest


def test_sampling_does_not_use_the_global_generator():
    before = torch.get_rng_state()
    hold_out(tensors(), 4, Rng(0))
    stratified_indices(tensors(), 4, 0)
    assert torch.equal(before, torch.get_rng_state())


def positions(cut):
    return set(cut.index.tolist())


@given(n=st.integers(2, 60), k=st.integers(1, 5), seed=st.integers(0, 20), part=st.floats(0, 1))
def test_held_out_and_rest_are_disjoint_and_complete(n, k, seed, part):
    count = min(n - 1, max(1, int(part * n)))
    rest, validation = hold_out(tensors(n, k), count, Rng(seed))
    assert len(validation) == count
    assert positions(rest) | positions(validation) == set(range(n))
    assert not positions(rest) & positions(validation)


@pytest.mark.parametrize("count", [10, 100, 103, 299])
def test_held_out_part_of_a_balanced_set_is_balanced(count):
    _, validation = hold_out(tensors(300, 10), count, Rng(0))
    per_class = torch.bincount(validation.labels, minlength=10)
    assert per_class.max() - per_class.min() <= 1


def test_held_out_part_of_an_unbalanced_set_keeps_the_proportions():
    _, validation = hold_out(labelled([0] * 700 + [1] * 200 + [2] * 100), 100, Rng(4))
    assert torch.bincount(validation.labels).tolist() == [70, 20, 10]


def test_smaller_held_out_part_is_contained_in_every_larger_one():
    cuts = [positions(hold_out(tensors(300, 7), count, Rng(1))[1]) for count in (20, 100, 200, 299)]
    assert all(small < large for small, large in pairwise(cuts))


def test_held_out_part_depends_on_the_seed_only():
    cuts = [positions(hold_out(tensors(300, 10), 50, Rng(seed))[1]) for seed in (0, 0, 1)]
    assert cuts[0] == cuts[1] != cuts[2]


@pytest.mark.parametrize("count", [0, -1, 12, 13])
def test_holding_out_none_or_all_is_refused(count):
    with pytest.raises(ValueError, match=f"got {count} of 12 training images, expected 1 to 11"):
        hold_out(tensors(12), count, Rng(0))
