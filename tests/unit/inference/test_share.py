"""Folded copies that share their parameters."""

from __future__ import annotations

import torch

from allrounder.inference.fast_conv import with_fast_convs
from allrounder.inference.fold import folded_copy
from allrounder.inference.share import share_parameters_
from allrounder.models import ResNet18
from allrounder.rng import Rng


def test_the_copy_uses_the_memory_of_the_original_and_computes_the_same_bits():
    with Rng(0).seed_global():
        model = ResNet18(width=32).build(10, (3, 8, 8)).eval()
    x = Rng(1).uniform(torch.empty(2, 3, 8, 8))
    folded = folded_copy(model, x)
    assert folded is not None
    fast = with_fast_convs(folded, x)
    assert fast is not folded
    with torch.no_grad():
        before = fast(x)
        share_parameters_(fast, folded)
        assert torch.equal(fast(x), before)
    ours, theirs = dict(fast.network.named_parameters()), dict(folded.network.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours)
