"""One base learner: a task with its network, optimiser and method state, and optionally a weight average."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.phases import find_phases
from allrounder.config.time import Clock, Time
from allrounder.data.augment import Augment
from allrounder.data.augment.base import Size
from allrounder.data.views import View
from allrounder.distributed import BatchShard
from allrounder.errors import Diverged, ThreatError
from allrounder.inference.fast_crafting import craft_with_fast_convs
from allrounder.nn.amp import allow_tf32, unwrap, with_autocast
from allrounder.nn.flat import flatten_, merge_tensors
from allrounder.nn.nonfinite import ADVICE, NonFiniteGuard
from allrounder.nn.state import EmaUpdate, clone, copy_, strip_prefix, weights_of
from allrounder.objectives import Objective
from allrounder.optim.base import TrainingStep
from allrounder.recipe.compute import Compute
from allrounder.recipe.exchange import KeepOrReset
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.types import Batch, Context, Loss, Weights, device_and_dtype

AugmentKey: TypeAlias = tuple[Augment, str, str]
"""An augmentation, the random stream it draws from, and the name of a learner that draws its own batches, or
"" for the batches of the recipe; learners with equal keys see the same images."""
AugmentCache: TypeAlias = dict[AugmentKey, tuple[Batch, int]]
"""Augmented batches, each with the version counter that its image tensor had then."""


@final
class Learner:
    """Takes the steps of one task. `state_dict` holds everything that is needed to resume."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        shard: BatchShard,
        seed: int,
        clock: Clock,
        compute: Compute = Compute(),
    ):
        """Take over `model` and train it in channels_last format, in which convolutions are faster."""
        self.task = task
        self.shard = shard
        self.clock = clock
        self.compute = compute
        self.rng = Rng(seed)
        self.model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # pyright: ignore[reportCallIssue]
        flatten_(self.model)  # before anything else holds its tensors
        self.device, self.dtype = device_and_dtype(model)
        phases = find_phases(task.objective, clock.epochs)
        self.phases = [(Time(start).to_steps(clock), objective) for start, objective in phases]
        """The objective from the step after each of these on."""
        self.optimizer = task.optimizer.build(model.parameters())
        if compute.fast_conv:
            craft_with_fast_convs(self.model)
        self.network = with_autocast(self.model, compute.autocast_dtype)
        self.teachers = {
            name: with_autocast(frozen_copy(self.model), compute.autocast_dtype)
            for name in task.objective.teachers().values()
        }
        memory = task.objective.memory() | task.update.memory(self.model)
        self.memory = {name: tensor.to(self.device) for name, tensor in memory.items()}
        is_cuda = self.device.type == "cuda"
        self.nonfinite_guard = NonFiniteGuard(self.optimizer, self.device, deferred=is_cuda)
        self.params = weights_of(model)
        self.merged_params = merge_tensors(self.params)
        self.average = clone(self.params) if task.average is not None else None
        self.ema_update = EmaUpdate(self.average, self.params) if self.average is not None else None

    def set_init(self, init_weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Pass the weights of the runs that training starts from to the update, before the first step."""
        if init_weights:
            self.task.update.set_init_(self.memory, init_weights)

    def step(self, batch: Batch, t: int, augmented: AugmentCache | None = None) -> Loss:
        """Take step t on a mini-batch: augment, craft, update the weights and their average.

        Ranks that share the learner augment the whole batch, and each continues with its shard. Learners that
        are given the same `augmented` share the result of equal augmentations. Gradients are freed.
        """
        task = self.task
        self.nonfinite_guard.t = t
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr(t)
        rng = self.rng.fold_in(task.name, t)
        shard = self.shard.for_batch(len(batch))
        shard.sync_batchnorm_(self.model)
        if shard.num_shards > 1:
            rng = rng.for_shard(shard.indices(len(batch)), len(batch))
        ctx = Context(t, self.clock, rng, self.memory, self.teachers)
        try:
            with rng.fold_in("ambient").seed_global(), allow_tf32(self.compute.tf32):
                local_batch = shard.select(self.prepare_batch(batch, t, augmented))
                reduce_ = partial(shard.allreduce_grads_, share=len(local_batch) / len(batch))
                objective = self.objective_at(t)
                loss = task.update.apply(
                    TrainingStep(self.network, self.optimizer, objective, local_batch, ctx, reduce_)
                )
            self.optimizer.zero_grad(set_to_none=True)
            self.nonfinite_guard.check_weights(self.merged_params)
        except (Diverged, ThreatError) as error:
            raise type(error)(f"{self._describe_step(t)}: {error}") from error
        if self.ema_update is not None and task.average is not None:
            rolled_back = task.update.has_rolled_back(self.memory)
            self.ema_update(0.0 if rolled_back else task.average(t, self.clock))
        return loss

    def objective_at(self, t: int) -> Objective:
        """Return the objective with the settings of step t."""
        return next(objective for last, objective in reversed(self.phases) if last < t)

    def prepare_batch(self, batch: Batch, t: int, augmented: AugmentCache | None = None) -> Batch:
        """Return the batch that this task trains on: augmented, on its device, with its label smoothing."""
        cache = {} if augmented is None else augmented
        entry = cache.get(self.augment_key)
        # A network that writes to its input, such as an in-place normalisation, makes the entry useless.
        if entry is None or entry[0].x._version != entry[1]:
            new = self.task.augment.apply(batch, self._augment_rng(t)).to(self.device, self.dtype)
            if new.x is batch.x:  # other learners may need the images unchanged
                new = replace(new, x=new.x.clone())
            entry = cache[self.augment_key] = new, new.x._version
        return replace(entry[0], label_smoothing=self.task.label_smoothing)

    @property
    def augment_key(self) -> AugmentKey:
        """The augmentation, its random stream, and the source of the batches."""
        task = self.task
        return task.augment, task.augment_stream, task.name if task.has_own_batches else ""

    def draw_view(self, t: int, count: int, size: Size, has_whole_images: bool) -> View:
        """Return the random crops that the augmentation of step t begins with, if there are whole images to
        cut them from or if their size is not that of the images; else None."""
        crop_size = self.task.augment.crop_size(size, t, self.clock)
        if not has_whole_images and crop_size == size:
            return None
        return self.task.augment.draw_crops(count, crop_size, self._augment_rng(t))

    def _augment_rng(self, t: int) -> Rng:
        return self.rng.fold_in("augment", self.task.augment_stream, t)

    def lr(self, t: int) -> float:
        """Return the learning rate of step t."""
        return self.task.lr(self.clock.schedule_step(t), self.clock)

    def averaged_weights(self) -> Weights:
        """Return what the learner gives to the mix: its weight average, or its weights if it keeps none."""
        return self.params if self.average is None else self.average

    def load_global_weights(
        self, weights: Mapping[str, Tensor], momentum: KeepOrReset = "keep", averages: KeepOrReset = "keep"
    ) -> None:
        """Continue from other weights; keep or reset the optimiser's momentum and the weight average."""
        copy_(self.params, weights)
        if averages == "reset" and self.average is not None:
            copy_(self.average, weights)
        if momentum == "reset":
            self.optimizer.state.clear()
            self.task.update.reset_momentum_(self.memory)

    def teacher_weights(self) -> Weights:
        """Return the weights of all teachers, each name after that of the teacher and a dot."""
        networks = {name: weights_of(unwrap(network)) for name, network in self.teachers.items()}
        return {
            f"{name}.{key}": tensor for name, weights in networks.items() for key, tensor in weights.items()
        }

    def load_teacher(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Copy new weights into a teacher."""
        copy_(weights_of(unwrap(self.teachers[name])), weights)

    def raise_if_nonfinite(self) -> None:
        """Raise Diverged if an earlier step was not finite and its check was deferred (on CUDA)."""
        if (t := self.nonfinite_guard.first_bad_step()) is not None:
            raise Diverged(f"{self._describe_step(t)}: gradients or weights are not finite; {ADVICE}")

    def _describe_step(self, t: int) -> str:
        return f"learner {self.task.name}, epoch {self.clock.epoch(t)}, step {t}"

    def state_dict(self) -> Weights:
        """Return everything that changes in training as named tensors; raise Diverged if it is not finite."""
        self.raise_if_nonfinite()
        state = {f"model.{name}": tensor for name, tensor in self.params.items()}
        state |= {f"average.{name}": tensor for name, tensor in (self.average or {}).items()}
        state |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        state |= {f"teacher.{name}": tensor for name, tensor in self.teacher_weights().items()}
        moments = cast(dict[int, dict[str, Any]], self.optimizer.state_dict()["state"])
        for number, entries in moments.items():
            for name, tensor in entries.items():
                if isinstance(tensor, Tensor):
                    state[f"optimizer.{number}.{name}"] = tensor
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state in place, so that memory layout, and thus rounding, stays the same."""
        copy_(self.params, strip_prefix("model.", state))
        if self.average is not None:
            copy_(self.average, strip_prefix("average.", state))
        copy_(self.memory, strip_prefix("memory.", state))
        for name in self.teachers:
            self.load_teacher(name, strip_prefix(f"teacher.{name}.", state))
        parameters = [p for group in self.optimizer.param_groups for p in cast(list[Tensor], group["params"])]
        moments: dict[int, dict[str, Tensor]] = {}
        for path, tensor in strip_prefix("optimizer.", state).items():
            number, name = path.split(".", 1)
            parameter = parameters[int(number)]
            like = parameter if tensor.shape == parameter.shape else tensor
            moments.setdefault(int(number), {})[name] = torch.empty_like(like, dtype=tensor.dtype).copy_(
                tensor
            )
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy of a network in eval mode, without gradients of its parameters."""
    return copy.deepcopy(model).eval().requires_grad_(False)
