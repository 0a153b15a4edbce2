"""One process among the processes of a run, with the collectives that training and evaluation need.

A world of size 1 is the serial case: every collective returns at once, and every learner is on rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from allrounder.distributed.coordinator import Coordinator
from allrounder.distributed.placement import BatchShard, Placement, change_flat_
from allrounder.errors import WorldError
from allrounder.system.tensor_folders import contiguous_cpu_copy
from allrounder.types import Weights

REQUIRED_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_VARIABLE, DEFAULT_TIMEOUT = "ALLROUNDER_TIMEOUT", 300.0
"""The environment variable with the timeout in seconds for a rank that takes no step, and its default."""


@final
@dataclass(frozen=True)
class World:
    """This process among all processes of the run."""

    rank: int
    size: int
    device: torch.device
    coordinator: Coordinator | None = None
    """The connection to the other ranks; None in a world of one."""

    @classmethod
    def from_env(cls, timeout: float | None = None) -> World:
        """The world that torchrun set up, or a world of one on this machine's best device. All ranks fail if
        one takes no step for `timeout` seconds; the default is ALLROUNDER_TIMEOUT, or 300."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(0, 1, _best_device(0))
        missing = [name for name in REQUIRED_VARIABLES if name not in os.environ]
        if size < 1 or missing:
            raise WorldError(
                f"launched with WORLD_SIZE={size} and without {', '.join(missing) or 'a process'}, expected "
                "the environment variables of torchrun; start it with torchrun or with --workers"
            )
        if timeout is None:
            timeout = float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        limit = timedelta(seconds=timeout)
        device = _best_device(int(os.environ["LOCAL_RANK"]))
        try:
            store, rank, size = next(rendezvous("env://", timeout=limit))
            # The launcher keeps its store, with all old keys, when it restarts the ranks.
            store = PrefixStore(f"attempt {_restart_count()}", store)
            coordinator = Coordinator(PrefixStore("messages", store), rank, size, timeout)
            coordinator.all_gather_object("the start", None)
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            tensor_store = PrefixStore("tensors", store)
            dist.init_process_group(backend, store=tensor_store, rank=rank, world_size=size, timeout=limit)
        except WorldError:
            raise
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise WorldError(
                f"rank {os.environ['RANK']} of {size} could not connect to the others at {where} ({first}); "
                "check that all ranks were started and that the address can be reached"
            ) from error
        return cls(rank, size, device, coordinator)

    @classmethod
    @contextmanager
    def open(cls, world: World | None = None) -> Generator[World]:
        """Yields the given world, or the one of the environment, which is closed at the end. On an error, the
        other ranks learn its message."""
        if world is not None:
            yield world
            return
        world = cls.from_env()
        failure: BaseException | None = None
        try:
            yield world
            world.all_gather_object("the end", None)
        except BaseException as error:
            failure = error
            raise
        finally:
            if world.coordinator is not None:
                # The launcher hosts the store if there is one, rank 0 otherwise.
                hosts_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and world.is_main
                world.coordinator.leave(failure, hosts_store=hosts_store)
                dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.rank == 0

    @property
    def restarts(self) -> int:
        """How often the launcher has restarted all processes."""
        return _restart_count() if self.coordinator is not None else 0

    @classmethod
    def single_process(cls) -> World:
        """A world of one on the CPU, whatever the environment says."""
        return cls(0, 1, torch.device("cpu"))

    def all_gather_object(self, label: str, value: Any) -> list[Any]:
        """Wait until every rank calls this with the same label; returns the JSON values in rank order."""
        return [value] if self.coordinator is None else self.coordinator.all_gather_object(label, value)

    def assert_equal_across_ranks(self, label: str, values: Mapping[str, Any]) -> None:
        """Raise on every rank if the values differ, naming the ranks that differ from rank 0."""
        gathered = self.all_gather_object(label, dict(values))
        differences = [
            f"{self.coordinator.name(rank)} has {key} {own.get(key)}, rank 0 has {expected}"
            for rank, own in enumerate(gathered)
            for key, expected in gathered[0].items()
            if self.coordinator is not None and own.get(key) != expected
        ]
        if differences:
            raise WorldError(f"{'; '.join(differences)}: start all ranks with the same command and data")

    def heartbeat(self, t: int | None = None) -> None:
        """Report to the other ranks that this one is working on step t."""
        if self.coordinator is not None:
            self.coordinator.heartbeat(t)

    def should_stop(self, t: int, signal: str | None) -> str | None:
        """Why all ranks stop after step t, or None; `signal` is the one that this rank received, if any."""
        return signal if self.coordinator is None else self.coordinator.should_stop(t, signal)

    def broadcast_(self, weights: Mapping[str, Tensor], src: int) -> None:
        """Copy the weights of rank `src` into those of all ranks."""
        if not 0 <= src < self.size:
            raise WorldError(f"broadcast from rank {src}: expected a rank below the world size {self.size}")
        coordinator = self.coordinator
        if coordinator is None:
            return

        def receive_(flat: Tensor) -> None:
            label = f"the weights of rank {src}"
            with coordinator.explain_failure(label, range(self.size)), _cpu_if_mps(flat) as buffer:
                dist.broadcast(buffer, src)
            coordinator.bytes_sent["weights"] += (self.size - 1) * flat.nbytes

        change_flat_(list(weights.values()), receive_)

    def send_state(self, weights: Mapping[str, Tensor] | None, src: int, dst: int) -> Weights | None:
        """Send tensors from rank `src` to rank `dst`, which gets them on the CPU; other ranks get None."""
        if self.rank not in (src, dst):
            return None
        if src == dst:
            return None if weights is None else dict(weights)
        assert self.coordinator is not None
        with self.coordinator.explain_failure(f"tensors from rank {src} to rank {dst}", (src, dst)):
            if self.rank == src:
                assert weights is not None
                tensors = {name: contiguous_cpu_copy(tensor) for name, tensor in weights.items()}
                data = torch.frombuffer(bytearray(save_safetensors(tensors)), dtype=torch.uint8)
                dist.send(torch.tensor([len(data)]), dst)
                dist.send(data, dst)
                self.coordinator.bytes_sent["states"] += len(data)
                return None
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, src)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, src)
            self.coordinator.bytes_sent["states"] += len(data)
        return load_safetensors(data.numpy().tobytes())

    def shards(self, placement: Placement) -> dict[str, BatchShard]:
        """This rank's shard of every learner that it trains. A collective: all ranks must call it."""
        shards = {name: self.shard_for(placement, name) for name in placement.ranks}
        if self.coordinator is not None:
            self.coordinator.followers = placement.followers()
            self.coordinator.step = 0
        return {name: shard for name, shard in shards.items() if shard is not None}

    def shard_for(self, placement: Placement, name: str) -> BatchShard | None:
        """This rank's shard of a learner, or None; all ranks must call it for every learner, in the same
        order."""
        ranks, coordinator = placement.ranks[name], self.coordinator
        group = dist.new_group(list(ranks)) if coordinator is not None and len(ranks) > 1 else None
        if self.rank not in ranks:
            return None
        shard = BatchShard(ranks.index(self.rank), len(ranks))
        if coordinator is None or group is None:
            return shard

        def sum_(tensor: Tensor) -> None:
            label = f"the gradients of {name}"
            with coordinator.explain_failure(label, ranks), _cpu_if_mps(tensor) as buffer:
                dist.all_reduce(buffer, group=group)
            coordinator.bytes_sent["gradients"] += tensor.nbytes

        return replace(shard, sum_=sum_)

    def bytes_sent(self) -> dict[str, int]:
        """The bytes sent since the last call, by kind: weights, states, gradients."""
        if self.coordinator is None:
            return {}
        sent = dict(self.coordinator.bytes_sent)
        self.coordinator.bytes_sent.clear()
        return sent


def _restart_count() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def _cpu_if_mps(tensor: Tensor) -> Generator[Tensor]:
    """Yields a tensor, or for MPS, which has no collectives, a copy on the CPU that is copied back."""
    buffer = tensor.cpu() if tensor.device.type == "mps" else tensor
    yield buffer
    if buffer is not tensor:
        tensor.copy_(buffer)


def _best_device(local: int) -> torch.device:
    """A GPU for each local rank if there are GPUs, else MPS, else the CPU."""
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise WorldError(
                f"local rank {local} has no GPU, this machine has {torch.cuda.device_count()}; start at most "
                "one rank per GPU, or train on the CPU with CUDA_VISIBLE_DEVICES="
            )
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
