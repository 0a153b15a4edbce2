"""The processes of a run, as one of them sees them.

A world of one is the serial case: it meets nobody, and seats every learner on rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from safetensors.torch import load as unpacked
from safetensors.torch import save as packed
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from allrounder.distributed.coordinator import Link
from allrounder.distributed.placement import Placement
from allrounder.distributed.shard import Seat
from allrounder.errors import WorldError
from allrounder.nn.state import Weights

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = "ALLROUNDER_TIMEOUT"
"""The environment variable with the seconds after which a rank that takes no step is given up."""
PATIENCE = 300.0


@final
@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int
    size: int
    device: torch.device
    link: Link | None = None
    """The line to the others, where there are any."""

    @classmethod
    def from_env(cls, timeout: float | None = None) -> World:
        """This process as torchrun started it, or a world of one on the best device of this machine.

        Where there are GPUs, every rank has one. A rank that takes no step for `timeout` seconds, or for
        those of the environment variable ALLROUNDER_TIMEOUT, or for 300, is given up.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(0, 1, _device(0))
        missing = [name for name in NEEDED if name not in os.environ]
        if size < 1 or missing:
            raise WorldError(
                f"launched with WORLD_SIZE={size} and without {', '.join(missing) or 'a process'}, expected "
                "the variables of torchrun; start it with torchrun, or with --workers"
            )
        patience = float(os.environ.get(TIMEOUT, PATIENCE)) if timeout is None else timeout
        device, limit = _device(int(os.environ["LOCAL_RANK"])), timedelta(seconds=patience)
        try:
            store, rank, size = next(rendezvous("env://", timeout=limit))
            # The launcher keeps its store when it starts the ranks anew, with all that was said before.
            store = PrefixStore(f"attempt {_restarts()}", store)
            link = Link(PrefixStore("notes", store), rank, size, patience)
            link.meet("the beginning", None)
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            inner = PrefixStore("tensors", store)
            dist.init_process_group(backend, store=inner, rank=rank, world_size=size, timeout=limit)
        except WorldError:
            raise
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise WorldError(
                f"rank {os.environ['RANK']} of {size} did not reach the others at {where} ({first}); check "
                "that all were started and that the address can be reached"
            ) from error
        return cls(rank, size, device, link)

    @classmethod
    @contextmanager
    def opened(cls, world: World | None = None) -> Generator[World]:
        """The given world, or that of the environment, which is left at the end; the others are told of an
        error."""
        if world is not None:
            yield world
            return
        world, failed = cls.from_env(), None
        try:
            yield world
            world.meet("the end", None)
        except BaseException as error:
            failed = error
            raise
        finally:
            if world.link is not None:
                # The store is the launcher's, or rank 0's where there is none.
                hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and world.chief
                world.link.leave(failed, last=hosts)
                dist.destroy_process_group()

    @property
    def chief(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def restarts(self) -> int:
        """How often the launcher has started all processes anew."""
        return _restarts() if self.link is not None else 0

    @classmethod
    def alone(cls) -> World:
        """This process with nobody else, whoever started it."""
        return cls(0, 1, torch.device("cpu"))

    def meet(self, what: str, note: Any) -> list[Any]:
        """Wait for everybody to come here; the notes of all, in the order of ranks."""
        return [note] if self.link is None else self.link.meet(what, note)

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise on every rank, naming those with other facts than rank 0."""
        notes = self.meet(what, dict(facts))
        odd = [
            f"{self.link.name(rank)} has {key} {note.get(key)}, rank 0 has {fact}"
            for rank, note in enumerate(notes)
            for key, fact in notes[0].items()
            if self.link is not None and note.get(key) != fact
        ]
        if odd:
            raise WorldError(f"{'; '.join(odd)}: start all ranks with the same")

    def tick(self, t: int | None = None) -> None:
        """Show the others that this process is at work, in step t."""
        if self.link is not None:
            self.link.tick(t)

    def stops(self, t: int, signal: str | None) -> str | None:
        """Why all processes stop after step t, if they do; `signal` is what this one was asked by."""
        return signal if self.link is None else self.link.stops(t, signal)

    def broadcast_(self, weights: Mapping[str, Tensor], src: int) -> None:
        """Give everybody the weights of one rank."""
        if not 0 <= src < self.size:
            raise WorldError(f"rank {src} was asked to speak in a world of {self.size}")
        if self.link is None:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in weights.values()):
            some = [tensor for tensor in weights.values() if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            carried = flat.cpu() if flat.device.type == "mps" else flat
            with self.link.watched(f"the weights of rank {src}", range(self.size)):
                dist.broadcast(carried, src)
            self.link.wire["weights"] += (self.size - 1) * carried.nbytes
            if src != self.rank:
                for tensor, came in zip(some, torch.split(carried, [t.numel() for t in some]), strict=True):
                    tensor.copy_(came.view(tensor.shape))

    def hand_over(self, weights: Mapping[str, Tensor] | None, src: int, dst: int) -> Weights | None:
        """Send named tensors from one rank to another, which gets them on its CPU; nothing elsewhere."""
        if self.rank not in (src, dst):
            return None
        if src == dst:
            return None if weights is None else dict(weights)
        assert self.link is not None
        with self.link.watched(f"tensors from rank {src} to rank {dst}", (src, dst)):
            if self.rank == src:
                assert weights is not None
                plain = {name: _plain(tensor) for name, tensor in weights.items()}
                data = torch.frombuffer(bytearray(packed(plain)), dtype=torch.uint8)
                dist.send(torch.tensor([len(data)]), dst)
                dist.send(data, dst)
                self.link.wire["states"] += len(data)
                return None
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, src)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, src)
            self.link.wire["states"] += len(data)
        return unpacked(data.numpy().tobytes())

    def seats(self, placement: Placement) -> dict[str, Seat]:
        """This rank's seats; every rank calls it together."""
        found = {name: self.seat(placement, name) for name in placement.ranks}
        if self.link is not None:
            self.link.followers, self.link.step = placement.followers(), 0
        return {name: seat for name, seat in found.items() if seat is not None}

    def seat(self, placement: Placement, name: str) -> Seat | None:
        """This rank's seat at a learner, if it has one; every rank asks for every learner."""
        ranks = placement.ranks[name]
        link, group = self.link, None
        if link is not None and len(ranks) > 1:
            group = dist.new_group(list(ranks))
        if self.rank not in ranks:
            return None
        if link is None or group is None:
            return Seat(ranks.index(self.rank), len(ranks))

        def sum_(tensor: Tensor) -> None:
            carried = tensor.cpu() if tensor.device.type == "mps" else tensor
            with link.watched(f"the gradients of {name}", ranks):
                dist.all_reduce(carried, group=group)
            link.wire["gradients"] += carried.nbytes
            if carried is not tensor:
                tensor.copy_(carried)

        return Seat(ranks.index(self.rank), len(ranks), sum_)

    def sent(self) -> dict[str, int]:
        """The bytes that went out since this was last asked, by what they were."""
        if self.link is None:
            return {}
        wire = dict(self.link.wire)
        self.link.wire.clear()
        return wire


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _device(local: int) -> torch.device:
    """The best device of this machine, a GPU of its own for every rank."""
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise WorldError(
                f"local rank {local} has no GPU, there are {torch.cuda.device_count()}; start at most one "
                "rank for each, or hide them with CUDA_VISIBLE_DEVICES= to train on the CPU"
            )
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
