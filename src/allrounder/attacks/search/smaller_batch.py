"""Smaller batches for the end of a search, when few examples are left.

Libraries may choose other instructions for another shape, so a smaller batch could change bits. Before a
batch becomes smaller, one cycle of queries is made in both sizes. The smaller batch takes over only if all
numbers of all its rows are equal, those of the network and those of the search. So results do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from allrounder.attacks.search.base import QueryResult, Search, State, query_model
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Passes

LOG = logging.getLogger("allrounder")
MIN_WIDTH = 4
"""The fewest rows of a batch that becomes smaller: with fewer, ResNet-18 gave other bits (ADR 0050)."""


def choose_smaller_width(width: int, occupied: int, min_width: int) -> int | None:
    """The width of a batch, halved as often as it still holds `occupied` rows and is not below `min_width`;
    None if it cannot be halved."""
    smaller = width
    while smaller % 2 == 0 and smaller // 2 >= max(occupied, min_width):
        smaller //= 2
    return smaller if smaller < width else None


@final
class SmallerBatch:
    """A cycle of queries for some rows of a batch, compared with the same queries of the whole batch."""

    def __init__(self, search: Search, network: Classifier, threat: Threat, rows: Sequence[int]) -> None:
        self.search = search
        self.network = network
        self.threat = threat
        self.rows = tuple(rows)
        self.is_equal = True
        """Whether all numbers so far were equal."""

    def compare(self, before: State, result: QueryResult, after: State, needs_grad: bool) -> Passes:
        """Make a query again for the rows only, and return its passes. `before`, `result` and `after` are
        those of the whole batch."""
        if not self.is_equal:
            return Passes()
        try:
            passes, self.is_equal = self._compare(before, result, after, needs_grad)
        except Exception as error:  # A network may support some sizes only; then the batch stays as it is.
            size, kind = len(self.rows), type(error).__name__
            LOG.debug("searches use no batches of %d images: %s: %s", size, kind, error)
            passes, self.is_equal = Passes(), False
        return passes

    def _compare(
        self, before: State, result: QueryResult, after: State, needs_grad: bool
    ) -> tuple[Passes, bool]:
        index = torch.tensor(self.rows, device=before["y"].device)
        state = {name: tensor[index] for name, tensor in before.items()}
        # A network that draws random numbers draws the same ones later as without this query.
        with Rng(0).fold_in("smaller batch").seed_global():
            got = query_model(self.search, self.network, state, self.threat, needs_grad)
        next_state = self.search.tell(state, got, self.threat)
        pairs = [(got.x, result.x[index]), (got.logits, result.logits[index])]
        pairs += [(next_state[name], tensor[index]) for name, tensor in after.items()]
        if got.loss is not None and result.loss is not None:
            pairs.append((got.loss, result.loss[:, index]))
        if got.gradient is not None and result.gradient is not None:
            pairs.append((got.gradient, result.gradient[:, index]))
        # Gradients that are all zero would be equal in any case.
        says_something = got.gradient is None or bool(got.gradient.any())
        return got.passes, says_something and all(_is_equal(a, b) for a, b in pairs)


def _is_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals itself, because rows without an example may hold it."""
    return torch.equal(a, b) or (
        a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    )
