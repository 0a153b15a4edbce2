"""Addressed randomness: every draw comes from a generator derived from (seed, path), never from ambient
state.

So a resumed run needs no saved generator, and a draw does not depend on which process makes it, or on what
was drawn before. Draws are made on the CPU and moved, so that every device sees the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast, final

import torch
from torch import Tensor

Address = str | int


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """A place in the tree of random numbers.

    With `rows`, the first dimension of every draw is addressed per example: row i depends on `rows[i]` alone
    and not on its neighbours in the batch, as evaluation needs. Without, a draw is made in one block, as
    training does.

    With `shard`, this process has some rows of a batch that others have the rest of: a draw for its images is
    made for the whole batch, and these rows are taken from it, so that nothing depends on who has which.
    """

    seed: int
    path: tuple[Address, ...] = ()
    rows: tuple[int, ...] | None = None
    shard: tuple[tuple[int, ...], int] | None = None
    """Rows of the batch, and how many it has."""

    def at(self, *more: Address) -> Draws:
        """The draws at an address below this one."""
        return replace(self, path=self.path + more)

    def per_example(self, rows: Tensor) -> Draws:
        """The same place, with one independent stream for every given row number."""
        return replace(self, rows=tuple(cast(list[int], rows.tolist())))

    def sharded(self, rows: range, images: int) -> Draws:
        """The same place, for some rows of a batch of so many images."""
        return replace(self, shard=(tuple(rows), images))

    def of_rows(self, index: Tensor) -> Draws:
        """The same streams for some of the examples; a draw in one block has no streams to choose from."""
        if self.shard is not None:
            has, images = self.shard
            return replace(self, shard=(tuple(has[i] for i in cast(list[int], index.tolist())), images))
        if self.rows is None:
            return self
        return replace(self, rows=tuple(self.rows[i] for i in cast(list[int], index.tolist())))

    def number(self) -> int:
        """The 63-bit number this address stands for."""
        text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (self.seed, *self.path))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self) -> torch.Generator:
        """A fresh CPU generator of this address."""
        return torch.Generator().manual_seed(self.number())

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform on [0, 1) in the shape, type and device of a tensor."""
        return self._fill(like, lambda block, generator: block.uniform_(generator=generator))

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal in the shape, type and device of a tensor."""
        return self._fill(like, lambda block, generator: block.normal_(generator=generator))

    def integers(self, count: int, low: int, high: int) -> Tensor:
        """`count` whole numbers from low to high - 1; one for every image, or as many as the batch has in
        common."""
        if self.shard is not None and count == len(self.shard[0]):
            whole = torch.randint(low, high, (self.shard[1],), generator=self.generator())
            return whole[list(self.shard[0])]
        return torch.randint(low, high, (count,), generator=self.generator())

    def permutation(self, count: int) -> Tensor:
        """A random order of 0 .. count - 1."""
        if self.shard is not None and count == len(self.shard[0]):
            raise ValueError(
                f"a batch whose images change places cannot be shared by several ranks, this one has {count} "
                f"of {self.shard[1]}; a method that needs them all says so (whole_batch = True)"
            )
        return torch.randperm(count, generator=self.generator())

    def _fill(self, like: Tensor, draw: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        block = torch.empty(like.shape, dtype=like.dtype)
        if self.shard is not None:
            return self._fill_shard(block, draw).to(like.device)
        if self.rows is None:
            return draw(block, self.generator()).to(like.device)
        if len(self.rows) != len(block):
            raise ValueError(f"draws are addressed for {len(self.rows)} examples, the batch has {len(block)}")
        for row, target in zip(self.rows, block, strict=True):
            draw(target, self.at("row", row).generator())
        return block.to(like.device)

    def _fill_shard(self, block: Tensor, draw: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        assert self.shard is not None
        rows, images = self.shard
        if block.dim() == 0:  # a number that all images have in common
            return draw(block, self.generator())
        if len(block) != len(rows):
            raise ValueError(
                f"a draw of {len(block)} rows for {len(rows)} of a batch's {images} images cannot be shared "
                "by several ranks; a method that draws so says so (whole_batch = True)"
            )
        whole = draw(block.new_empty(images, *block.shape[1:]), self.generator())
        return whole[list(rows)]

    @contextmanager
    def ambient(self) -> Generator[None]:
        """Seed torch's global generators from this address, and restore them after: for code that draws from
        them and cannot be told otherwise (initialisers, dropout)."""
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
            with torch.random.fork_rng(devices=list(devices)):
                torch.manual_seed(self.number())
                yield
            return
        # torch.manual_seed also notes the seed for devices that may come, with a whole stack trace.
        generator = torch.default_generator
        before = generator.get_state()
        try:
            generator.manual_seed(self.number())
            yield
        finally:
            generator.set_state(before)
