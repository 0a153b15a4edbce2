"""Methods of several trainings: what they make, and that an interruption anywhere changes no bit of it."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import pytest
import torch

from allrounder.config.schedules import Constant
from allrounder.data.base import Subset
from allrounder.errors import Interrupted, RecipeError, RunError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.study import Trial
from allrounder.nn.state import bezier
from allrounder.recipe.pipeline import ChooseShares
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.progress import TrainingStatus
from allrounder.training.data import train_val_split
from allrounder.training.run import Run, load
from allrounder.types import Passes
from tests.reference.rmc import with_statistics
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import blobs, same, tiny
from tests.support.pipelines import PIPELINES, pipeline
from tests.support.trainings import contents, go, remains

FIRST = {"curve": "one", "soup": "base", "self-training": "teacher"}
LOG, SAVE = "allrounder.training.run:Run.log", "allrounder.training.run:Run.save_weights"
KILLS = {
    "curve, inside the first phase": ("curve", Point(STEP, 2)),
    "curve, between the phases": ("curve", Point(LOG, 1, mentions="'stage'")),
    "curve, after a phase": ("curve", Point(LOG, 2, True, mentions="'stage'")),
    "curve, inside the last phase": ("curve", Point(STEP, 11, after=True)),
    "curve, between two places": ("curve", Point(LOG, 2, mentions="'point'")),
    "curve, before the log": ("curve", Point("allrounder.training.pipelines.base:PipelineContext.finish")),
    "curve, between best and last": ("curve", Point(SAVE, 7, True)),
    "soup, inside a member": ("soup", Point(STEP, 5, after=True)),
    "soup, between members": ("soup", Point(LOG, 2, mentions="'stage'")),
    "soup, before the result": ("soup", Point("allrounder.training.pipelines.soup:average_weights")),
    "self-training, before the labels": (
        "self-training",
        Point("allrounder.training.pipelines.self_training:predict_labels"),
    ),
    "self-training, inside the labels": (
        "self-training",
        Point("allrounder.system.tensor_folders:save_file", 1, True, mentions=".labels"),
    ),
    "self-training, inside the last phase": ("self-training", Point(STEP, 4)),
    "self-training, inside the result": (
        "self-training",
        Point("allrounder.training.pipelines.self_training:_copy_weights", 2),
    ),
}
SOME = (
    "curve, inside the last phase",
    "curve, between best and last",
    "soup, between members",
    "self-training, inside the labels",
    "self-training, inside the result",
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory):
    """A program that nothing happened to, and what it left."""

    @cache
    def of(kind: str) -> tuple[Run, dict[str, object]]:
        run = go(pipeline(kind), tmp_path_factory.mktemp("done") / "run")
        return run, remains(run.folder)

    return of


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pipeline_ends_as_a_finished_run(kind: str, done):
    run, _ = done(kind)
    assert run.finished
    assert Recipe.loads(run.recipe.dumps()) == run.recipe
    phases = sorted(path.name for path in (run.folder / "stages").iterdir())
    assert phases == sorted(run.recipe.stage_recipes())
    assert [event["name"] for event in run.metrics() if event["event"] == "stage"] == list(
        run.recipe.stage_recipes()
    )
    for which in ("best", "last", run.recipe.names[0]):
        model = load(run.folder, which, model=tiny)
        assert 0 <= evaluate(model, blobs(48), n=9, options=EvalOptions(check="skip")).accuracy() <= 1
    assert run.weights()[1]["classes"] == ["0", "1", "2"]
    assert "score" in run.weights("best")[1]
    assert [event["event"] for event in run.metrics()].count("validation") >= 1


@pytest.mark.parametrize("kind", PIPELINES)
def test_every_stage_is_a_run_of_its_stage_recipe(kind: str, done):
    run, _ = done(kind)
    for name, recipe in run.recipe.stage_recipes().items():
        phase = Run(run.folder / "stages" / name)
        assert phase.finished
        assert phase.recipe.epochs == recipe.epochs and phase.recipe.tasks == recipe.tasks
        assert phase.recipe.pipeline is None and phase.recipe.seed == run.recipe.seed


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in KILLS]
)
def test_resume_of_a_killed_pipeline_gives_identical_weights(name: str, tmp_path: Path, done):
    kind, point = KILLS[name]
    with struck(point, give_up), pytest.raises(Killed):
        go(pipeline(kind), tmp_path / "run")
    assert not Run(tmp_path / "run").finished
    # Nothing in it knows where it lies.
    (tmp_path / "run").rename(tmp_path / "moved")
    run = go(pipeline(kind), tmp_path / "moved", resume=True)
    assert remains(run.folder) == done(kind)[1]


@pytest.mark.slow
def test_a_signal_between_two_points_of_a_curve_can_be_resumed(tmp_path: Path, done):
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        struck(Point(LOG, 1, mentions="'point'"), stop),
        pytest.raises(Interrupted, match="after point 1 of 3"),
    ):
        go(pipeline("curve"), tmp_path / "run")
    assert remains(go(pipeline("curve"), tmp_path / "run", resume=True).folder) == done("curve")[1]


def test_an_unfinished_pipeline_continues_only_with_resume(tmp_path: Path):
    with struck(Point(STEP, 2), give_up), pytest.raises(Killed):
        go(pipeline("soup"), tmp_path / "run")
    with pytest.raises(RunError, match="continue with --resume"):
        go(pipeline("soup"), tmp_path / "run")
    changed = pipeline("soup", ("length = 0.5", "length = 1"))
    with pytest.raises(RunError, match="another recipe"):
        go(changed, tmp_path / "run", resume=True)


def test_a_finished_pipeline_is_not_changed(done):
    run, _ = done("soup")
    before = contents(run.folder)
    assert go(pipeline("soup"), run.folder).finished
    assert contents(run.folder) == before


def test_the_point_of_a_curve_has_the_weights_and_statistics_of_the_literal_one(done):
    run, _ = done("curve")
    points = [event for event in run.metrics() if event["event"] == "point"]
    assert [point["position"] for point in points] == [0.0, 0.5, 1.0]
    best = max(points, key=lambda point: (point["worst"], point["natural"], -point["position"]))
    one, two, c = (Run(run.folder / "stages" / name).weights()[0] for name in ("one", "two", "curve"))
    theta, facts = run.weights("best")
    assert same(theta, run.weights()[0]) and facts["score"] == best["worst"]
    train, _ = train_val_split(run.recipe, blobs(48))
    order = Rng(run.recipe.seed).fold_in("recalibrate").permutation(len(train))
    images = [Subset(train, order).fetch(rows) for rows in torch.split(torch.arange(len(train)), 16)]
    expected = with_statistics(tiny(), bezier(best["position"], one, c, two), images).state_dict()
    for name, tensor in theta.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, expected[name], atol=1e-5), name


@pytest.mark.slow
def test_a_curve_starts_half_way_between_its_ends(tmp_path: Path):
    still = pipeline("curve", ("lr = 0.05\nupdate", "lr = 0\nupdate"))
    run = go(still, tmp_path / "run")
    one, two, c = (Run(run.folder / "stages" / name).weights()[0] for name in ("one", "two", "curve"))
    for name in ("conv.weight", "linear.bias", "bn.weight"):
        assert torch.allclose(c[name], (one[name] + two[name]) / 2, rtol=0, atol=1e-6)


def test_a_soup_is_the_plain_average_of_its_members(done):
    run, _ = done("soup")
    theta = run.weights()[0]
    members = [Run(run.folder / "stages" / name).weights()[0] for name in ("linf", "natural")]
    assert same(run.weights("linf")[0], members[0]) and same(run.weights("natural")[0], members[1])
    for name, tensor in theta.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, (members[0][name] + members[1][name]) / 2, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_members_with_learning_rate_zero_equal_their_base(tmp_path: Path):
    text = PIPELINES["soup"]
    head, _, tail = text.partition("[[task]]")
    tail = tail.replace("lr = 0.05", "lr = 0").replace("to = [0.1, 0.02]", "to = [0, 0]")
    shares = head.replace('kind = "soup"', 'kind = "soup"\nshares = { linf = 0.75, natural = 0.25 }')
    run = go(Recipe.loads(f"{shares}[[task]]{tail}"), tmp_path / "run")
    base = Run(run.folder / "stages" / "base").weights()[0]
    for name in ("conv.weight", "linear.weight", "bn.bias"):
        assert torch.allclose(run.weights()[0][name], base[name], rtol=0, atol=1e-7)


def test_shares_weigh_the_members(tmp_path: Path):
    replaced = 'kind = "soup"\nshares = { linf = 0.75, natural = 0.25 }\nbuffers = "recalibrate"'
    run = go(pipeline("soup", ('kind = "soup"', replaced)), tmp_path / "run")
    linf, natural = (Run(run.folder / "stages" / name).weights()[0] for name in ("linf", "natural"))
    theta, name = run.weights()[0], "conv.weight"
    assert torch.allclose(theta[name], 0.75 * linf[name] + 0.25 * natural[name], rtol=0, atol=1e-6)
    mean = 0.75 * linf["bn.running_var"] + 0.25 * natural["bn.running_var"]
    assert not torch.allclose(theta["bn.running_var"], mean, atol=1e-6)


CHOOSING = ('kind = "soup"', 'kind = "soup"\nchoose = { parts = 2 }')


def test_chosen_shares_are_the_first_of_the_best_on_held_out_images(tmp_path: Path):
    run = go(pipeline("soup", CHOOSING), tmp_path / "run")
    points = [event for event in run.metrics() if event["event"] == "point"]
    grid = [{"linf": 0.0, "natural": 1.0}, {"linf": 0.5, "natural": 0.5}, {"linf": 1.0, "natural": 0.0}]
    assert [point["shares"] for point in points] == grid
    best = max(points, key=lambda point: (point["worst"], point["natural"]))
    (validation,) = [event for event in run.metrics() if event["event"] == "validation"]
    assert (validation["shares"], validation["score"]) == (best["shares"], best["worst"])
    members = {name: Run(run.folder / "stages" / name).weights()[0] for name in ("linf", "natural")}
    for name, tensor in run.weights("best")[0].items():
        if tensor.is_floating_point():
            expected = sum(share * members[member][name] for member, share in best["shares"].items())
            assert torch.allclose(tensor, torch.as_tensor(expected), rtol=0, atol=1e-6)


def test_a_soup_that_was_killed_while_choosing_measures_only_what_is_missing(tmp_path: Path):
    with struck(Point(LOG, 2, mentions="'point'"), give_up), pytest.raises(Killed):
        go(pipeline("soup", CHOOSING), tmp_path / "run")
    run = go(pipeline("soup", CHOOSING), tmp_path / "run", resume=True)
    assert [event["event"] for event in run.metrics()].count("point") == 3
    whole = go(pipeline("soup", CHOOSING), tmp_path / "whole")
    assert remains(run.folder) == remains(whole.folder)


def test_combinations_of_shares_sum_to_one_and_are_all_different():
    combinations = ChooseShares(parts=4).combinations(["a", "b", "c"])
    assert len(combinations) == 15 == len({tuple(shares.values()) for shares in combinations})
    assert all(sum(shares.values()) == pytest.approx(1) for shares in combinations)
    assert {"a": 0.25, "b": 0.5, "c": 0.25} in combinations


class Listener:
    """Records the progress of a pipeline."""

    def __init__(self) -> None:
        self.total, self.seen = 1, list[float]()
        self.epochs: list[tuple[int, int]] = []

    def begin(self, total: int, done: int) -> None:
        self.total = total
        self.seen.append(done / total)

    def step(self, t: int) -> None:
        self.seen.append(t / self.total)

    def log(self, text: str) -> None:
        pass

    def report(self, status: TrainingStatus) -> None:
        self.epochs.append((status.epoch, status.epochs))


def test_progress_of_a_pipeline_increases_from_zero_to_the_total(tmp_path: Path):
    listener = Listener()
    value = pipeline("self-training")
    go(value, tmp_path / "run", progress=listener)
    total = sum(stage.epochs for stage in value.stage_recipes().values())
    assert listener.epochs[0] == (0, total) and listener.epochs[-1] == (total, total)
    assert listener.epochs == sorted(listener.epochs)
    assert listener.seen[0] == 0 and listener.seen[-1] == 1
    assert listener.seen == sorted(listener.seen)


def test_the_cost_of_a_pipeline_is_that_of_all_stages():
    """Two epochs of the curve and one of each end, at three pairs a step: 3 + 3 + 6."""
    value = pipeline("curve")
    assert value.passes() == Passes(3, 3)
    assert value.total_passes() == Trial(0, value, "x", {}).cost == Passes(12, 12)
    # One natural epoch, then two of both members: 1 + 6 + 2.
    assert pipeline("soup").total_passes() == Passes(9, 9)


CURVED = "update = { kind = 'curve', weight_decay = 0.01 }"
REFUSED = {
    "nothing to choose the place on": ("curve", ("images = 12", "images = 0"), "validation.images: is 0"),
    "no threat to choose it by": (
        "curve",
        ('threats = ["Linf:0.1", "L2:0.5"]', "threats = []"),
        "validation.threats: is empty",
    ),
    "a plain task on a curve": ("curve", (CURVED, ""), 'update = { kind = "curve" }'),
    "decay of the bend": (
        "curve",
        (CURVED, CURVED + "\noptimizer = { kind = 'sgd', weight_decay = 0.1 }"),
        "update.weight_decay: the optimiser has weight decay 0.1",
    ),
    "one place": ("curve", ("points = 3", "points = 1"), "pipeline.points"),
    "two phases of one name": ("curve", ('name = "two"', 'name = "one"'), 'stages are called "one"'),
    "a phase called like the curve": ("curve", ('name = "two"', 'name = "curve"'), 'called "curve"'),
    "a phase without a task that can be": (
        "soup",
        ("[[pipeline.base.task]]", "mix = { exchange = { start = 0, every = 1 } }\n[[pipeline.base.task]]"),
        "pipeline.base.mix.exchange",
    ),
    "a member called like the base": ("soup", ('name = "base"', 'name = "linf"'), 'called "linf"'),
    "a mix of a soup": ("soup", ("[pipeline]", "[mix]\ndecay = 0.5\nshares = { lead = 'linf', curve = 0.5 }\n"
                                 "[pipeline]"), "mix: a soup mixes"),
    "shares of others": (
        "soup",
        ('kind = "soup"', 'kind = "soup"\nshares = { linf = 1.0 }'),
        "expected a share for each",
    ),
    "fixed shares beside chosen ones": (
        "soup",
        ('kind = "soup"', 'kind = "soup"\nchoose = {}\nshares = { linf = 0.5, natural = 0.5 }'),
        "pipeline.shares: choose selects the shares",
    ),
    "a second set beside the program's": (
        "self-training",
        ("[pipeline]", "[extra]\nshare = 0.5\ndata = { kind = 'embedded' }\n[pipeline]"),
        "extra: the pipeline provides",
    ),
    "all labels hidden": ("self-training", ("hidden = 0.5", "hidden = 1.0"), "pipeline.hidden"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_pipeline_is_refused(case: str):
    kind, change, message = REFUSED[case]
    with pytest.raises(RecipeError) as error:
        pipeline(kind, change)
    assert message in str(error.value)


def test_shares_are_not_chosen_without_held_out_images():
    with pytest.raises(RecipeError, match="shares of the soup are selected on held-out images"):
        pipeline("soup", CHOOSING, ("images = 12", "images = 0"))


def test_a_curve_without_two_runs_to_start_from_is_refused():
    text = PIPELINES["curve"]
    head, _, rest = text.partition("[pipeline]")
    task = rest[rest.rindex("[[task]]") :]
    with pytest.raises(RecipeError, match="init: starts from 0 runs; the update of linf needs 2"):
        Recipe.loads(head + task)


def test_a_curve_can_connect_any_two_runs(done, tmp_path: Path):
    run, _ = done("curve")
    head, _, rest = PIPELINES["curve"].partition("[pipeline]")
    runs = [str(run.folder / "stages" / name) for name in ("one", "two")]
    text = f"init = {{ kind = 'soup', runs = {runs} }}\n{head}{rest[rest.rindex('[[task]]') :]}"
    alone = go(Recipe.loads(text), tmp_path / "run")
    assert same(alone.weights()[0], Run(run.folder / "stages" / "curve").weights()[0])


@pytest.mark.parametrize("kind", PIPELINES)
def test_overrides_reach_the_fields_of_pipelines(kind: str, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(PIPELINES[kind])
    task = {
        "curve": "end.one.task.linf",
        "soup": "base.task.natural",
        "self-training": "teacher.task.natural",
    }
    phase = task[kind].partition(".task")[0]
    sets = [f"pipeline.{phase}.length=1.5", f"pipeline.{task[kind]}.lr=0.25", "epochs=4"]
    value = Recipe.load(file, sets)
    first = value.stage_recipe(FIRST[kind])
    assert first.epochs == 6 and first.tasks[0].lr == Constant(value=0.25)
    assert value.fingerprint() != Recipe.load(file).fingerprint()
