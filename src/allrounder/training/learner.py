"""One base learner: a task with a network, an optimiser, a memory, and perhaps an average of its own
weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.time import Clock
from allrounder.data.augment import Augment
from allrounder.distributed import Seat
from allrounder.errors import Diverged, ThreatError
from allrounder.nn.amp import guarded, in_precision
from allrounder.nn.nonfinite import ADVICE, Watch
from allrounder.nn.state import Blend, Weights, copy_, snapshot, under, weights_of
from allrounder.recipe.compute import Compute, crafting_compiled, tensor_floats
from allrounder.recipe.task import Task
from allrounder.rng import Draws
from allrounder.types import Batch, Context, Keep, Loss, device_of

View: TypeAlias = tuple[Augment, str]
"""An augmentation and the stream it draws from: the same for all who see the same images."""
Seen: TypeAlias = dict[View, tuple[Batch, int]]
"""What was augmented of a batch, and how often its images had been written to by then."""


@final
class Learner:
    """Takes the steps of one task; everything it needs to go on after a stop is in `state`."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        seat: Seat,
        seed: int,
        clock: Clock,
        compute: Compute = Compute(),
        full: int = 0,
    ):
        """The network is trained in channels_last, which convolutions prefer.

        `full` is how many images a batch has unless it is the last one of an epoch: the ones to compile for.
        """
        self.task, self.seat, self.clock, self.compute = task, seat, clock, compute
        self.draws = Draws(seed)
        self.model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # pyright: ignore[reportCallIssue]
        self.device, self.dtype = device_of(model)
        self.optimizer = task.optimizer.build(model.parameters())
        self.network = in_precision(self.model, compute)
        self.compiled = len(seat.rows(full)) if compute.compile else None
        remembered = task.objective.memory() | task.update.memory(self.model)
        self.memory = {name: tensor.to(self.device) for name, tensor in remembered.items()}
        # A loss scale asks before the watch does: it takes away what overflows, and training goes on.
        self.memory |= guarded(self.network, self.optimizer)
        self.watch = Watch(self.optimizer, self.device, waits=self.device.type == "cuda")
        self.live = weights_of(model)
        self.average = snapshot(self.live) if task.average is not None else None
        self.blend = Blend(self.average, self.live) if self.average is not None else None

    def begin(self, members: Sequence[Mapping[str, Tensor]]) -> None:
        """Hear what runs the training starts from, if it does, before its first step."""
        if members:
            self.task.update.begin_(self.memory, members)

    def step(self, batch: Batch, t: int, seen: Seen | None = None) -> Loss:
        """Take step t on a mini-batch: augment, craft, descend, average; its gradients are not kept.

        Several ranks that share the learner augment all of it, and go on with a part each. Learners that are
        given one `seen` augment alike together, once.
        """
        task, self.watch.t = self.task, t
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr(t)
        draws, seat = self.draws.at(task.name, t), self.seat.at(len(batch))
        seat.synchronise_(self.model)
        if seat.count > 1:
            draws = draws.sharded(seat.rows(len(batch)), len(batch))
        ctx = Context(t, self.clock, draws, self.memory)
        arithmetic = tensor_floats(self.compute.tf32)
        try:
            with draws.at("ambient").ambient(), arithmetic, crafting_compiled(self.compiled):
                shard = seat.shard(self.prepare(batch, t, seen))
                reduce_ = partial(seat.mean_, share=len(shard) / len(batch))
                loss = task.update.apply(self.network, self.optimizer, task.objective, shard, ctx, reduce_)
            self.optimizer.zero_grad(set_to_none=True)
            self.watch.after(self.live)
        except (Diverged, ThreatError) as error:
            raise type(error)(f"{self._when(t)}: {error}") from error
        if self.blend is not None and task.average is not None:
            restarted = task.update.restarted(self.memory)
            self.blend(0.0 if restarted else task.average(t, self.clock))
        return loss

    def prepare(self, batch: Batch, t: int, seen: Seen | None = None) -> Batch:
        """The batch as this task sees it: on its device, augmented, with its label smoothing."""
        view, seen = (self.task.augment, self.task.stream), {} if seen is None else seen
        shown = seen.get(view)
        # A network that changes its images in place, as a normalisation may, has spoilt them for others.
        if shown is None or shown[0].x._version != shown[1]:
            draws = self.draws.at("augment", self.task.stream, t)
            new = self.task.augment.apply(batch, draws).to(self.device, self.dtype)
            shown = seen[view] = new, new.x._version
        return replace(shown[0], smoothing=self.task.smoothing)

    def lr(self, t: int) -> float:
        """The learning rate of step t."""
        return self.task.lr(self.clock.reading(t), self.clock)

    def weights(self) -> Weights:
        """What it gives to the mix: its average if it keeps one, else its live weights."""
        return self.live if self.average is None else self.average

    def receive(
        self, weights: Mapping[str, Tensor], momentum: Keep = "keep", averages: Keep = "keep"
    ) -> None:
        """Restart from other weights."""
        copy_(self.live, weights)
        if averages == "reset" and self.average is not None:
            copy_(self.average, weights)
        if momentum == "reset":
            self.optimizer.state.clear()
            self.task.update.reset_(self.memory)

    def check(self) -> None:
        """Raise Diverged if a step since the start was bad and could not say so without waiting."""
        if (t := self.watch.check()) is not None:
            raise Diverged(f"{self._when(t)}: gradients or weights are not finite; {ADVICE}")

    def _when(self, t: int) -> str:
        return f"learner {self.task.name}, epoch {self.clock.epoch(t)}, step {t}"

    def state(self) -> Weights:
        """Everything that changes, as named tensors; nothing that is not finite is given away."""
        self.check()
        state = {f"model.{name}": tensor for name, tensor in self.live.items()}
        state |= {f"average.{name}": tensor for name, tensor in (self.average or {}).items()}
        state |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        moments = cast(dict[int, dict[str, Any]], self.optimizer.state_dict()["state"])
        for number, entries in moments.items():
            for name, tensor in entries.items():
                if isinstance(tensor, Tensor):
                    state[f"optimizer.{number}.{name}"] = tensor
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a saved state, in place, so that memory layout and thus rounding stay the same."""
        copy_(self.live, under("model.", state))
        if self.average is not None:
            copy_(self.average, under("average.", state))
        copy_(self.memory, under("memory.", state))
        parameters = [p for group in self.optimizer.param_groups for p in cast(list[Tensor], group["params"])]
        moments: dict[int, dict[str, Tensor]] = {}
        for path, tensor in under("optimizer.", state).items():
            number, name = path.split(".", 1)
            like = parameters[int(number)]
            fits = tensor.shape == like.shape
            kept = torch.empty_like(like, dtype=tensor.dtype).copy_(tensor) if fits else tensor.clone()
            moments.setdefault(int(number), {})[name] = kept
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
