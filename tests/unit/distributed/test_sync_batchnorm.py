"""Batch-norm that ranks share, of one rank sum_over_one: it is torch's, in every precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from allrounder.distributed.sync_batchnorm import _statistics, sync_batchnorm_
from allrounder.rng import Rng

SHAPE = (43, 3, 7, 7)
"""2107 values a channel, which bfloat16 rounds to 2112."""


def sum_over_one(values: Tensor) -> None:
    """The sum over one rank."""


def values(dtype: torch.dtype) -> Tensor:
    """Around 100, so that their sum is beyond float16."""
    return (100 + Rng(0).normal(torch.empty(SHAPE, dtype=torch.float64))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_statistics_are_counted_and_summed_in_at_least_float32(dtype: torch.dtype):
    x = values(dtype)
    mean, var, count = _statistics(x, sum_over_one)
    assert count == 2107
    assert mean.dtype == var.dtype == torch.promote_types(dtype, torch.float32)
    exact = x.double()
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=1e-5, atol=0)
    torch.testing.assert_close(var.double(), exact.var((0, 2, 3), correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_one_rank_equals_torch_batchnorm(dtype: torch.dtype):
    plain = nn.BatchNorm2d(3).to(torch.promote_types(dtype, torch.float32))
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
    shared = copy.deepcopy(plain)
    sync_batchnorm_(shared, sum_over_one)
    weights = Rng(1).normal(torch.empty(SHAPE, dtype=torch.float64)).to(dtype)
    results: list[list[Tensor]] = []
    for layer in (plain, shared):
        x = values(dtype).requires_grad_()
        y = layer(x)
        (y * weights).sum(dtype=torch.promote_types(dtype, torch.float32)).backward()
        assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
        results.append([y.detach(), x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-4
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=10 * tolerance)
