"""`train`: open a run folder, train its recipe there, and leave everything for a later call to resume."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.errors import RESUME_HINT, Interrupted
from allrounder.models.factory import ModelFactory, ModelLike, as_factory
from allrounder.recipe.recipe import Recipe
from allrounder.system.memory import keep_freed_memory
from allrounder.system.progress import Progress, report_status
from allrounder.system.signals import stop_on_signals
from allrounder.training import setup
from allrounder.training.data import TrainingData
from allrounder.training.disk_space import check_disk_space, count_needed_bytes
from allrounder.training.pipelines import PipelineContext, check_pipeline, run_pipeline
from allrounder.training.run import Run
from allrounder.training.setup import NewRunInputs
from allrounder.training.tensorboard import check_tensorboard, write_events
from allrounder.training.trainer import Trainer


def train(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    model: ModelLike | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | bool | None = True,
) -> Run:
    """Train a recipe in the run folder `out`, or resume the run that is there.

    The recipe is a value, the name of a shipped one, or the path of a file; for a name or a path, `overrides`
    such as "epochs=4" change it. `model` and `data` replace the recipe's; they are recorded by name and must
    be given again to resume. A function or class that builds a network is called after the random numbers
    were seeded; a network itself is copied, and its weights are the initial weights of all learners.

    `progress` shows a bar; False or None shows none, and an object of your own receives the steps.
    """
    recipe = setup.resolve_recipe(recipe, overrides)
    factory = as_factory(model)
    setup.check_data(data)
    recipe = setup.override_recipe(recipe, model, data)
    with World.open(world) as world, setup.open_progress(progress, recipe, world) as listener:
        setup.check_supports_distributed(recipe, world)
        recipe.compute.check_device(world.device)
        if recipe.tensorboard and world.is_main:
            check_tensorboard()
        world.assert_equal_across_ranks("the recipe", setup.run_signature(recipe))
        inputs = setup.load_new_run_inputs(recipe, Path(out), factory, data, world)
        if inputs is not None:
            check_pipeline(recipe, inputs.data.dataset)
        run, finished = setup.open_run(recipe, Path(out), resume or world.restarts > 0, world)
        if finished:
            listener.log(f"{run.folder}: already finished")
        elif recipe.pipeline is None:
            _train_run(recipe, run, factory, data, inputs, world, listener)
        else:
            _train_pipeline(recipe, run, factory, data, inputs, world, listener)
        return run


def _train_pipeline(
    recipe: Recipe,
    run: Run,
    model: ModelFactory | None,
    data: Data | None,
    inputs: NewRunInputs | None,
    world: World,
    progress: Progress,
) -> None:
    """Train the remaining stages of a pipeline."""
    inputs = inputs or NewRunInputs(TrainingData.load(recipe, data))
    inputs.network = None  # frees the initial network, which a pipeline does not use
    training_data = inputs.data

    def train_stage(recipe: Recipe, out: Path, data: Data, progress: Progress) -> Run:
        inputs = setup.load_new_run_inputs(recipe, out, model, data, world)
        run, finished = setup.open_run(recipe, out, True, world)
        signal = None if finished else _train_run(recipe, run, model, data, inputs, world, progress)
        # A signal may arrive while the final weights are written.
        for name in filter(None, world.all_gather_object(f"the end of {out.name}", signal)):
            raise Interrupted(f"{run.folder}: {name} after its end; {RESUME_HINT}")
        return run

    with run.lock() if world.is_main else nullcontext():
        for line in run.record_session(world.device) if world.is_main else ():
            progress.log(line)
        run_pipeline(PipelineContext(recipe, run, model, training_data, world, progress, train_stage))


def _train_run(
    recipe: Recipe,
    run: Run,
    model: ModelFactory | None,
    data: Data | None,
    inputs: NewRunInputs | None,
    world: World,
    progress: Progress,
) -> str | None:
    """Take the remaining steps of a run; return the signal that arrived after the last one, if any."""
    with run.lock() if world.is_main else nullcontext(), stop_on_signals() as stop:
        inputs = inputs or NewRunInputs(TrainingData.load(recipe, data))
        network, inputs.network = inputs.network, None  # else it would stay in memory beside its copies
        trainer = Trainer(recipe, run, model, inputs.data, world, network)
        del network
        trainer.restore()
        if world.is_main:
            check_disk_space(run.folder, count_needed_bytes(trainer))
        for line in trainer.log_session_header() if world.is_main else ():
            progress.log(line)
        report_status(progress, trainer.status())
        progress.begin(trainer.clock.total_steps, trainer.t)
        has_events = recipe.tensorboard and world.is_main
        events = write_events(run, trainer.clock, progress.log) if has_events else nullcontext()
        with events, keep_freed_memory():
            trainer.fit(progress=progress, stop=stop)
            trainer.finish()
        return stop.signal
