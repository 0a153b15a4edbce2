"""Lookahead: unused rows of a batch make the queries that follow if the earlier ones are rejected.

Late in a random search most queries are rejected, so those after the next one are known in advance. The
queries up to the first accepted one count; the rest are discarded. Rows do not depend on each other, so the
outcome equals that of single queries bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from allrounder.attacks.search.base import Search, State


@final
class LookAhead:
    """Assigns each row of a batch to an occupied slot, with the number of queries that it is ahead."""

    def __init__(self, search: Search, state: State, occupied: Sequence[int], batch_size: int):
        """Distribute the unused rows over the occupied slots, one by one."""
        self.search = search
        unused = [row for row in range(batch_size) if row not in set(occupied)]
        self.rows = {slot: [slot, *unused[turn :: len(occupied)]] for turn, slot in enumerate(occupied)}
        slots, steps = torch.arange(batch_size), torch.zeros(batch_size, dtype=torch.int64)
        for slot, rows in self.rows.items():
            slots[rows] = slot
            steps[rows] = torch.arange(len(rows))
        self.slots, self.steps = slots.to(state["x"].device), steps.to(state["x"].device)
        self.state = self._skip_ahead({name: tensor[self.slots] for name, tensor in state.items()})

    def _skip_ahead(self, state: State) -> State:
        skipped = self.search.skip_ahead(state, self.steps)
        assert skipped is not None, "LookAhead needs a search that can skip ahead"
        return skipped

    def follow(self, state: State, after: State, ends: Sequence[bool]) -> tuple[State, list[int]]:
        """Return the state of the slots after the queries that count, and the last such row of each slot.

        `ends` tells for each row whether its query was accepted, succeeded or was the last of its round.
        """
        last = list(range(len(ends)))
        for slot, rows in self.rows.items():
            last[slot] = next((row for row in rows if ends[row]), rows[-1])
        chosen = torch.tensor(last, device=self.slots.device)
        # Tensors that `tell` does not change, such as the image itself, are not copied again.
        new = {name: tensor[chosen] for name, tensor in after.items() if tensor is not self.state[name]}
        self.state = self._skip_ahead(self.state | {name: tensor[self.slots] for name, tensor in new.items()})
        return state | new, last
