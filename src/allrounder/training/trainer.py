"""The training loop: Algorithms 1 and 2 of Generalist++ for any number of learners."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, final

import torch
from torch import nn

from allrounder.data.base import Data
from allrounder.data.batches import BatchSource
from allrounder.data.fingerprint import fingerprint_data
from allrounder.data.views import View, has_whole_images
from allrounder.distributed import World
from allrounder.errors import RESUME_HINT, Interrupted
from allrounder.inference.fold import copy_sharing_fold
from allrounder.models.factory import ModelFactory
from allrounder.nn.mixing import Chosen
from allrounder.nn.state import interpolate, weights_of
from allrounder.recipe.lint import warnings_for
from allrounder.recipe.recipe import Recipe
from allrounder.system.progress import Progress, TrainingStatus, report_status
from allrounder.system.signals import StopRequest
from allrounder.training import setup
from allrounder.training.checkpoint import Checkpointer, EpochMetrics
from allrounder.training.data import TrainingData
from allrounder.training.exchange_log import log_exchange
from allrounder.training.learner import AugmentCache, AugmentKey, Learner
from allrounder.training.mixer import Mixer
from allrounder.training.model_selection import ModelSelector
from allrounder.training.recalibration import set_statistics
from allrounder.training.run import Run
from allrounder.training.share_choice import average_shares, choose_shares
from allrounder.training.teaching import Teaching
from allrounder.types import Batch, Weights


@final
class Trainer:
    """Trains the learners of this rank and mixes them with those of other ranks."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        model: ModelFactory | None,
        data: TrainingData | Data,
        world: World,
        network: nn.Module | None = None,
    ):
        """Build the learners of this rank, all from one initial network: `network` if it has been built. All
        ranks call it together. Training starts at step 0; `restore` continues from a checkpoint."""
        self.recipe = recipe
        self.run = run
        self.world = world
        self.data = TrainingData.split(recipe, data) if isinstance(data, Data) else data
        self.batches = self.data.batches
        self.clock = self.data.clock
        self.image_size = self.data.dataset.shape[1:]
        self.has_whole_images = has_whole_images(self.batches.split)
        self.mix = recipe.effective_mix
        # A resumed run must have the same images.
        self.data_facts = fingerprint_data(self.data.train, self.data.dataset.extra if recipe.extra else None)
        world.assert_equal_across_ranks("the images", self.data_facts)
        # A checkpoint replaces the initial weights, so the runs that they came from may be gone.
        is_new = world.is_main and run.latest_checkpoint() is None
        init_weights = setup.load_init_weights(recipe.init, run.folder.parent) if is_new else []
        if network is None:
            network = setup.build_initial_model(recipe, model, self.data.dataset, init_weights)
        network = network.to(world.device)
        world.broadcast_(weights_of(network), src=0)
        self.scratch_model = copy_sharing_fold(network)  # its weights may be overwritten
        own_sizes = [own.batch_size for own in self.data.own_batches.values()]
        batch_size = min(recipe.batch_size, len(self.data.train), *own_sizes)
        self.placement = setup.place_learners(recipe, network, batch_size, world.size)
        shards = world.shards(self.placement)
        self.learners = [
            Learner(
                task, copy_sharing_fold(network), shards[task.name], recipe.seed, self.clock, recipe.compute
            )
            for task in recipe.tasks
            if task.name in shards
        ]
        for learner in self.learners:
            learner.set_init([weights for _, weights in init_weights])
        parameters = [name for name, _ in network.named_parameters(remove_duplicate=False)]
        # The layout of a learner's weights, so that both are updated in few operations.
        start = self.learners[0].params if self.learners else weights_of(self.scratch_model)
        self.mixer = Mixer(self.mix, self.placement, start, world, self.clock, parameters)
        for learner in self.learners:
            self.mixer.watch(learner.task.name, learner.model, learner.optimizer)
        self.selection = ModelSelector(recipe, self.data, self.scratch_model, world)
        self.metrics = EpochMetrics(recipe.names, lazy=world.device.type == "cuda")
        self.checkpoints = Checkpointer(run, world, self.placement, self.clock, self.metrics)
        self.teaching = Teaching(recipe.tasks, self.learners, self.checkpoints, start)
        self.last_validation: dict[str, Any] = {}
        self.t = 0
        """The last step that was taken."""

    def fit(
        self, until: int | None = None, *, progress: Progress | None = None, stop: StopRequest | None = None
    ) -> None:
        """Take the steps up to `until`, by default up to the end of the run."""
        last = self.clock.total_steps if until is None else until
        for t in range(self.t + 1, last + 1):
            self.world.heartbeat(t)
            if self.learners:  # a rank without learners needs no images
                self.step_learners(t)
            if self.clock.ends_epoch(t):
                self.log_epoch(t)
            if self.selection.is_due(t):
                self.select_best(t)
            self.teaching.refresh(t, self.global_weights)  # before an exchange makes all learners equal
            # No exchange follows the last step: the learners' final weights are saved.
            if self.mix.exchange_due(t, self.clock) and t < self.clock.total_steps:
                self.exchange(t)
            if self.checkpoints.is_due(t):
                self.save(t)
            self.t = t
            if progress is not None:
                if self.clock.ends_epoch(t):
                    report_status(progress, self.status())
                progress.step(t)
            self.stop_if_signalled(t, stop)

    def step_learners(self, t: int) -> None:
        """Let the learners of this rank take step t. The images are freed before the validation."""
        batches = self.fetch_batches(t)
        augmented: AugmentCache = {}  # learners with the same augmentation share its result
        for learner in self.learners:
            self.world.heartbeat()
            name, batch = learner.task.name, batches[learner.augment_key]
            num_images = learner.shard.for_batch(len(batch)).num_reported(len(batch))
            self.metrics.add(name, learner.step(batch, t, augmented), num_images)
            self.mixer.update(name, learner.averaged_weights(), t)

    def fetch_batches(self, t: int) -> dict[AugmentKey, Batch]:
        """Return the images of step t as the augmentations of this rank's learners begin with them: cropped
        from whole images, or as the dataset prepares them."""
        by_source: dict[BatchSource, dict[AugmentKey, Learner]] = {}
        for learner in self.learners:
            source = self.data.own_batches.get(learner.task.name, self.batches)
            by_source.setdefault(source, {})[learner.augment_key] = learner
        fetched: dict[AugmentKey, Batch] = {}
        for source, learners in by_source.items():
            draw_views = partial(self._draw_views, learners)
            fetched |= source.views_at(self.clock.epoch(t), self.clock.step_in_epoch(t), draw_views)
        return fetched

    def _draw_views(
        self, learners: Mapping[AugmentKey, Learner], t: int, count: int
    ) -> dict[AugmentKey, View]:
        facts = count, self.image_size, self.has_whole_images
        return {key: learner.draw_view(t, *facts) for key, learner in learners.items()}

    def status(self) -> TrainingStatus:
        """Return what a progress bar shows beside the steps; nothing is measured for it."""
        epochs, exchange = self.checkpoints.last_epoch, self.mix.exchange
        step = None if exchange is None else exchange.next_due(self.t, self.clock)
        validation = self.last_validation
        return TrainingStatus(
            self.t // self.clock.steps_per_epoch,
            self.clock.epochs,
            losses={name: event["loss"] for name, event in epochs.items()},
            shares={name: event["share"] for name, event in epochs.items()} if len(epochs) > 1 else {},
            accuracies={"natural": validation["natural"], **validation["robust"]} if validation else {},
            next_exchange=None if step is None else self.clock.epoch(step),
        )

    def global_weights(self, what: str = "the global weights") -> Weights:
        """Return theta_g, with the batch-norm statistics that the recipe asks for. All ranks call it
        together; errors about a missing rank mention `what`."""
        self.checkpoints.gather_notes(what)
        return self._set_statistics(self.mixer.global_weights())

    def exchange(self, t: int) -> None:
        """Let every learner continue from the global weights after step t. All ranks call it together."""
        self.checkpoints.gather_notes(f"the exchange after step {t}")
        shares = self.mix.shares_at(t, self.clock, self.recipe.names)
        if isinstance(self.mix.rule, Chosen):
            facts = choose_shares(self.mix.rule, self.mixer, self.selection, self._set_statistics)
            shares = average_shares(facts["shares"])
            if self.world.is_main:
                seconds = self.metrics.lap_seconds()
                self.run.log("shares", t=t, epoch=self.clock.epoch(t), **facts, seconds=seconds)
        theta = self._set_statistics(self.mixer.exchange())
        led = {name: learner.averaged_weights() for name, learner in self._led_learners().items()}
        # Batch-norm statistics are not learned, and recalibrated ones are no mixture.
        parameters = {name: theta[name] for name, _ in self.scratch_model.named_parameters()}
        assert self.mix.exchange is not None
        log_exchange(self.checkpoints, self.mix.exchange, t, led, shares, parameters)
        self.restart_learners(theta)

    def _set_statistics(self, theta: Weights) -> Weights:
        return set_statistics(theta, self.scratch_model, self.recipe, self.data.train, self.world.heartbeat)

    def log_epoch(self, t: int) -> None:
        """Log losses, learning rates and shares of the epoch that ends with step t."""
        facts: dict[str, dict[str, float]] = {}
        for learner in self.learners:
            learner.raise_if_nonfinite()
            facts[learner.task.name] = {"lr": learner.lr(t), "share": self.mixer.share(learner.task.name, t)}
        self.checkpoints.record_epoch(t, facts)

    def select_best(self, t: int) -> None:
        """Validate the global weights after step t, and save them if they are the best so far."""
        theta = self.global_weights(f"the validation after step {t}")
        facts = self.selection.measure(theta, t)
        self.last_validation = facts
        if facts["best"]:
            self._save_weights("best", t, theta, score=facts["score"])
        if self.world.is_main:
            seconds = self.metrics.lap_seconds()
            self.run.log("validation", t=t, epoch=self.clock.epoch(t), **facts, seconds=seconds)

    def restart_learners(self, theta: Weights) -> None:
        """Let every learner of this rank continue from the global weights, or from a point on the way."""
        exchange = self.mix.exchange
        assert exchange is not None
        for learner in self.learners:
            weights = interpolate(exchange.strength, learner.params, theta)
            learner.load_global_weights(weights, exchange.momentum, exchange.averages)

    def stop_if_signalled(self, t: int, stop: StopRequest | None) -> None:
        """Save a checkpoint and raise Interrupted if a signal reached this or another rank."""
        reason = self.world.should_stop(t, None if stop is None else stop.signal)
        if reason is not None:
            self.save(t)
            # A rank that left earlier would close connections that others still use.
            self.world.all_gather_object("the stop", None)
            stopped = f"{reason} after step {t}, the state is saved"
            raise Interrupted(f"{self.run.folder}: {stopped}; {RESUME_HINT}")

    def save(self, t: int) -> None:
        """Save a checkpoint after step t, then delete best weights that it does not mention."""
        states: dict[str, Weights] = {}
        for name, learner in self._led_learners().items():
            states[name] = learner.state_dict() | self.mixer.state_dict(name)
        self.checkpoints.save_checkpoint(t, states, {"best": self.selection.best, **self.data_facts})

    def restore(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        facts, states = self.checkpoints.restore(self.data_facts)
        learners = {learner.task.name: learner for learner in self.learners}
        for name, state in states.items():
            learners[name].load_state_dict(state)
            self.mixer.load_state_dict(name, state)
        self.mixer.broadcast_memory()
        self.selection.best = facts.get("best")
        self.t = facts["t"]

    def finish(self) -> None:
        """Save the final weights, which mark the run as finished."""
        self._save_weights("last", self.clock.total_steps, self.global_weights("the final weights"))

    def log_session_header(self) -> list[str]:
        """Record this session in the run folder; return messages about it, the recipe and the placement."""
        ranks, size = self.placement.ranks, self.world.size
        facts = {"processes": size, "ranks": {name: list(on) for name, on in ranks.items()}}
        fast = setup.find_fast_convs(self.recipe, self.scratch_model, self.data.dataset)
        lines = self.run.record_session(self.world.device, **(facts if size > 1 else {}), **fast)
        lines += [f"attacks use faster convolutions in {len(names)} layers" for names in fast.values()]
        lines += self.data.describe(self.recipe)
        if size > 1:
            places = ", ".join(f"{name} on {', '.join(map(str, on))}" for name, on in ranks.items())
            lines.append(f"{size} processes of {torch.get_num_threads()} threads: {places}")
        if self.placement.followers():
            accuracy = "equal those of a single rank up to rounding, not bit-for-bit"
            lines.append(f"several ranks share a learner: its weights {accuracy}")
        if idle := self.placement.idle_ranks(size):
            lines.append(f"ranks {', '.join(map(str, idle))} are idle: no learner can use more ranks")
        lines += self.recipe.compute.check_device(self.world.device)
        return [*lines, *warnings_for(self.recipe, self.clock)]

    def _led_learners(self) -> dict[str, Learner]:
        """Return the learners whose state this rank saves, if several ranks share one, by name."""
        learners = {learner.task.name: learner for learner in self.learners}
        rank = self.world.rank
        return {name: learner for name, learner in learners.items() if self.placement.leader(name) == rank}

    def _save_weights(self, which: str, t: int, theta: Weights, **facts: float) -> None:
        led = self._led_learners()
        averaged = {name: learner.averaged_weights() for name, learner in led.items()}
        live = {name: learner.params for name, learner in led.items() if learner.average is not None}
        dataset = self.data.dataset
        metadata = {
            **({} if self.recipe.extra is None else {"extra": str(self.recipe.extra)}),
            "classes": list(dataset.classes),
            "shape": list(dataset.shape),
            "data": dataset.name,
            "selected_on": self.recipe.validation.on,
            **facts,
        }
        self.checkpoints.save_weights(which, t, theta, averaged, live, metadata)
