"""Looking ahead: idle rows of a batch ask what a search would ask next, should its answers change nothing.

Late in a random search most answers change nothing. So the questions after the next one are known, and rows
of the batch that would be idle can ask them at once. The first answer that does change something ends the
line of those that count; the others are thrown away. A row's answer does not depend on its neighbours, so
what counts is bit for bit what would have been asked and answered one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from allrounder.attacks.search.base import Search, State


@final
class Ahead:
    """For every row of a batch, the slot it asks for, and how many of that slot's questions it is ahead."""

    def __init__(self, search: Search, state: State, occupied: Sequence[int], width: int):
        """Rows that are not occupied are dealt to the slots that are, in turn."""
        self.search, idle = search, [row for row in range(width) if row not in set(occupied)]
        self.rows = {slot: [slot, *idle[turn :: len(occupied)]] for turn, slot in enumerate(occupied)}
        slot, steps = torch.arange(width), torch.zeros(width, dtype=torch.int64)
        for owner, rows in self.rows.items():
            for ahead, row in enumerate(rows):
                slot[row], steps[row] = owner, ahead
        device = state["x"].device
        self.slot, self.steps = slot.to(device), steps.to(device)
        self.state = self._seen({name: tensor[self.slot] for name, tensor in state.items()})

    def _seen(self, state: State) -> State:
        seen = self.search.ahead(state, self.steps)
        assert seen is not None, "only searches that can look ahead are asked to"
        return seen

    def follow(self, state: State, after: State, ends: Sequence[bool]) -> tuple[State, list[int]]:
        """The slots' state after the answers that count, and for every slot the row of the last of them.

        `ends` are the rows whose answer changed something, or was the last.
        """
        last = list(range(len(ends)))
        for slot, rows in self.rows.items():
            last[slot] = next((row for row in rows if ends[row]), rows[-1])
        chosen = torch.tensor(last, device=self.slot.device)
        # What no answer changes, such as the image itself, need not be copied again.
        new = {name: tensor[chosen] for name, tensor in after.items() if tensor is not self.state[name]}
        self.state = self._seen(self.state | {name: tensor[self.slot] for name, tensor in new.items()})
        return state | new, last
