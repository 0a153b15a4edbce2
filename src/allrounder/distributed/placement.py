"""The assignment of learners to ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Placement:
    """The ranks that train each learner, in learner order."""

    ranks: Mapping[str, tuple[int, ...]]

    def learners_on(self, rank: int) -> tuple[str, ...]:
        """The learners that a rank trains, alone or together with others."""
        return tuple(name for name, ranks in self.ranks.items() if rank in ranks)

    def leader(self, name: str) -> int:
        """The first rank of a learner, which sends its weights and state."""
        return self.ranks[name][0]

    def followers(self) -> frozenset[int]:
        """Ranks that share the batches of a learner but do not lead it."""
        return frozenset(rank for ranks in self.ranks.values() for rank in ranks[1:])

    def idle_ranks(self, size: int) -> tuple[int, ...]:
        """Ranks of a world of `size` that train nothing."""
        return tuple(rank for rank in range(size) if not self.learners_on(rank))


def assign_ranks(
    names: Sequence[str],
    size: int,
    cost: Mapping[str, int | float],
    unshardable: Collection[str] = (),
    max_ranks: int | None = None,
) -> Placement:
    """Give every learner one rank, and each spare rank to the learner with the most work per rank. With fewer
    ranks than learners, spread the learners so that every rank has about the same work. Learners named in
    `unshardable` cannot split a batch and get one rank; no learner gets more than `max_ranks`."""
    if size < len(names):
        return _pack(names, size, cost)
    counts, limit = dict.fromkeys(names, 1), size if max_ranks is None else max_ranks
    for _ in range(size - len(names)):
        growable = [name for name in names if name not in unshardable and counts[name] < limit]
        if not growable:
            break
        counts[max(growable, key=lambda name: cost[name] / counts[name])] += 1
    ranks: dict[str, tuple[int, ...]] = {}
    for name in names:
        first = sum(map(len, ranks.values()))
        ranks[name] = tuple(range(first, first + counts[name]))
    return Placement(ranks)


def _pack(names: Sequence[str], size: int, cost: Mapping[str, int | float]) -> Placement:
    """Greedy packing: the most expensive learner first, each on the rank with the least work so far."""
    work = [0.0] * size
    ranks: dict[str, tuple[int, ...]] = {}
    for name in sorted(names, key=lambda name: -cost[name]):
        rank = work.index(min(work))
        work[rank] += cost[name]
        ranks[name] = (rank,)
    return Placement({name: ranks[name] for name in names})
