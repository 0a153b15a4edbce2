"""Which process trains which learner."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Placement:
    """Which ranks train which learner, in learner order."""

    ranks: Mapping[str, tuple[int, ...]]

    @classmethod
    def alone(cls, names: Sequence[str]) -> Placement:
        """Every learner on rank 0."""
        return cls({name: (0,) for name in names})

    def local(self, rank: int) -> tuple[str, ...]:
        """The learners seated on a rank."""
        return tuple(name for name, ranks in self.ranks.items() if rank in ranks)

    def leader(self, name: str) -> int:
        """The rank that speaks for a learner."""
        return self.ranks[name][0]

    def followers(self) -> frozenset[int]:
        """Ranks that share the batches of a learner that another rank speaks for."""
        return frozenset(rank for ranks in self.ranks.values() for rank in ranks[1:])

    def idle(self, size: int) -> tuple[int, ...]:
        """Ranks of a world of so many that train nothing."""
        return tuple(rank for rank in range(size) if not self.local(rank))


def deal(
    names: Sequence[str],
    size: int,
    cost: Mapping[str, int | float],
    whole: Collection[str] = (),
    most: int | None = None,
) -> Placement:
    """Give every learner a rank and spare ranks to those with most work for each of theirs; with fewer ranks
    than learners, give every rank learners of about the same work.

    Learners named in `whole` cannot share a batch and get one rank; no learner gets more than `most`.
    """
    if size < len(names):
        return _packed(names, size, cost)
    counts = dict.fromkeys(names, 1)
    for _ in range(size - len(names)):
        able = [name for name in names if name not in whole and (most is None or counts[name] < most)]
        if not able:
            break
        counts[max(able, key=lambda name: cost[name] / counts[name])] += 1
    ranks: dict[str, tuple[int, ...]] = {}
    for name in names:
        first = sum(map(len, ranks.values()))
        ranks[name] = tuple(range(first, first + counts[name]))
    return Placement(ranks)


def _packed(names: Sequence[str], size: int, cost: Mapping[str, int | float]) -> Placement:
    """The largest first, each on the rank with least work so far."""
    work = [0.0] * size
    found: dict[str, tuple[int, ...]] = {}
    for name in sorted(names, key=lambda name: -cost[name]):
        rank = work.index(min(work))
        work[rank] += cost[name]
        found[name] = (rank,)
    return Placement({name: found[name] for name in names})
