"""Addressed randomness: every random number comes from a generator derived from (seed, path), never from
global state.

A resumed run therefore needs no saved generator, and a draw depends neither on the process that makes it nor
on earlier draws. Numbers are drawn on the CPU and then moved, so they are the same on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, cast, final

import torch
from torch import Tensor

Address = str | int
DrawFn: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Rng:
    """A node in the tree of random numbers.

    With `rows`, the first dimension of every draw is addressed per example: row i depends on `rows[i]` only,
    not on its neighbours in the batch, as evaluation needs. Without `rows`, a draw is made in one block, as
    training does.

    With `shard`, this process holds some rows of a batch, and other processes the rest: a draw for its images
    is made for the whole batch, and its rows are selected, so results do not depend on the distribution.
    """

    seed: int
    path: tuple[Address, ...] = ()
    rows: tuple[int, ...] | None = None
    shard: tuple[tuple[int, ...], int] | None = None
    """The rows of the batch that this process holds, and the size of the batch."""

    def fold_in(self, *addresses: Address) -> Rng:
        """Return the node at an address below this one."""
        return replace(self, path=self.path + addresses)

    def per_example(self, rows: Tensor) -> Rng:
        """Return the same node with an independent stream for every row number."""
        return replace(self, rows=tuple(cast(list[int], rows.tolist())))

    def for_shard(self, rows: range, images: int) -> Rng:
        """Return the same node for some rows of a batch of `images` images."""
        return replace(self, shard=(tuple(rows), images))

    def select(self, index: Tensor) -> Rng:
        """Return the same streams for some of the examples; without rows or shard, the node itself."""
        if self.shard is None and self.rows is None:  # before `tolist`, which would wait for a device
            return self
        positions = cast(list[int], index.tolist())
        if self.shard is not None:
            rows, images = self.shard
            return replace(self, shard=(tuple(rows[i] for i in positions), images))
        assert self.rows is not None
        return replace(self, rows=tuple(self.rows[i] for i in positions))

    def derive_seed(self) -> int:
        """Return the 63-bit seed of this address."""
        text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (self.seed, *self.path))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self) -> torch.Generator:
        """Return a new CPU generator for this address."""
        return torch.Generator().manual_seed(self.derive_seed())

    def uniform(self, like: Tensor) -> Tensor:
        """Draw uniformly from [0, 1) in the shape, type and device of a tensor."""
        return self._fill(like, lambda block, generator: block.uniform_(generator=generator))

    def normal(self, like: Tensor) -> Tensor:
        """Draw from the standard normal in the shape, type and device of a tensor."""
        return self._fill(like, lambda block, generator: block.normal_(generator=generator))

    def integers(self, count: int, low: int, high: int) -> Tensor:
        """Draw `count` integers from low to high - 1: one per image, or a number that the batch shares."""
        if self.shard is not None and count == len(self.shard[0]):
            return torch.randint(low, high, (self.shard[1],), generator=self.generator())[list(self.shard[0])]
        return torch.randint(low, high, (count,), generator=self.generator())

    def permutation(self, count: int) -> Tensor:
        """Draw a random order of 0 .. count - 1."""
        if self.shard is not None and count == len(self.shard[0]):
            raise ValueError(
                f"several ranks cannot share a batch whose images are permuted, this one has {count} of "
                f"{self.shard[1]}; set whole_batch = True in the method"
            )
        return torch.randperm(count, generator=self.generator())

    def _fill(self, like: Tensor, draw: DrawFn) -> Tensor:
        block = torch.empty(like.shape, dtype=like.dtype)
        if self.shard is not None:
            return self._fill_shard(block, draw, *self.shard).to(like.device)
        if self.rows is None:
            return draw(block, self.generator()).to(like.device)
        if len(self.rows) != len(block):
            raise ValueError(
                f"random numbers are addressed for {len(self.rows)} examples, but the batch has {len(block)}"
            )
        for row, target in zip(self.rows, block, strict=True):
            draw(target, self.fold_in("row", row).generator())
        return block.to(like.device)

    def _fill_shard(self, block: Tensor, draw: DrawFn, rows: tuple[int, ...], images: int) -> Tensor:
        if block.dim() == 0:  # one number for the whole batch
            return draw(block, self.generator())
        if len(block) != len(rows):
            raise ValueError(
                f"several ranks cannot share a draw of {len(block)} rows for {len(rows)} of a batch's "
                f"{images} images; set whole_batch = True in the method"
            )
        return draw(block.new_empty(images, *block.shape[1:]), self.generator())[list(rows)]

    @contextmanager
    def seed_global(self) -> Generator[None]:
        """Seed torch's global generators from this address for code that can only draw from them, such as
        initialisers and dropout, and restore them afterwards."""
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
            with torch.random.fork_rng(devices=list(devices)):
                torch.manual_seed(self.derive_seed())
                yield
            return
        # torch.manual_seed also stores the seed for devices that may appear later, with a stack trace.
        generator = torch.default_generator
        before = generator.get_state()
        try:
            generator.manual_seed(self.derive_seed())
            yield
        finally:
            generator.set_state(before)
