"""Training as a whole: the same bits every time, plain methods as special cases, no look at what is held
out."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.data.base import Data, Split, TensorSplit
from allrounder.distributed import World
from allrounder.errors import Diverged, RecipeError, RunError
from allrounder.nn.state import clone
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training import data as training_data
from allrounder.training.run import Run
from allrounder.training.train import train
from allrounder.training.trainer import Trainer
from allrounder.types import Weights
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import Tiny, blobs, same, tiny, unfoldable64
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, PAIR, SOLO, Model, go, recipe, remains, without

WORLD = World(0, 1, torch.device("cpu"))
L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")
EASY = NATURAL.replace('name = "natural"', 'name = "easy"').replace("0.1, 0.02", "0.05, 0.01")


def training(value: Recipe, out: Path, model: Model = tiny, data: Data | None = None) -> Trainer:
    run = Run.open_or_create(out, value, resume=False)
    return Trainer(value, run, model, data or blobs(48), WORLD)


def steps(real: Trainer, last: int | None = None) -> Trainer:
    real.fit(until=last)
    return real


def test_the_same_recipe_gives_identical_weights_and_another_seed_does_not(tmp_path: Path):
    one = remains(go(recipe(), tmp_path / "one").folder)
    assert any(name.startswith("weights/best") for name in one) and "metrics.jsonl" in one
    torch.manual_seed(99)  # plays no part
    assert remains(go(recipe(), tmp_path / "two").folder) == one
    other = remains(go(recipe(PAIR, ("seed = 5", "seed = 6")), tmp_path / "other").folder)
    last = "weights/last-00000009/global.safetensors"
    assert other[last] != one[last]


def test_the_log_has_every_epoch_of_every_learner_and_every_validation_and_exchange(tmp_path: Path):
    run = go(recipe(), tmp_path / "run")
    events = [without(event, "seconds") for event in run.metrics()]
    logged = [(e["event"], e["t"], e["epoch"], e.get("learner")) for e in events]
    assert (
        logged
        == [
            entry
            for epoch in (1, 2, 3)
            for entry in (
                ("epoch", 3 * epoch, epoch, "linf"),
                ("epoch", 3 * epoch, epoch, "natural"),
                ("validation", 3 * epoch, epoch, None),
                ("exchange", 3 * epoch, epoch, None),
            )
        ][:-1]
    ), "no exchange follows the last step"
    assert {e["share"] for e in events if e.get("learner") == "linf"} == {0.6}
    assert [e["lr"] for e in events if e.get("learner") == "natural"] == pytest.approx(
        [0.1 - 0.08 / 3, 0.1 - 0.16 / 3, 0.02]
    )
    validation = events[2]
    assert validation["robust"].keys() == {"Linf:0.1"} and validation["selected_on"] == "validation"
    assert validation["train"].keys() == {"natural", "robust"}, "the training slice is logged"


def test_an_epoch_is_logged_with_the_means_over_its_images(tmp_path: Path):
    real = training(recipe(SOLO), tmp_path / "run")
    losses, sizes = [], []
    take = real.learners[0].step

    def noted(batch: Any, t: int, seen: Any) -> Any:
        loss = take(batch, t, seen)
        losses.append(float(loss.total.detach()))
        sizes.append(len(batch))
        return loss

    real.learners[0].step = noted  # pyright: ignore[reportAttributeAccessIssue]
    steps(real, 3)
    assert sizes == [16, 16, 4]
    expected = sum(a * b for a, b in zip(losses, sizes, strict=True)) / 36
    assert real.run.metrics()[0]["loss"] == pytest.approx(expected, rel=1e-12)


def plain_sgd(real: Trainer, decay: float | None = None) -> tuple[nn.Module, Weights]:
    """Ordinary PyTorch, with the batches and the starting point of a training; and a literal average."""
    model = copy.deepcopy(real.scratch_model).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    task = real.recipe.tasks[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = clone(model.state_dict())
    for t in range(1, real.clock.total_steps + 1):
        epoch = real.clock.epoch(t)
        batch = real.learners[0].prepare_batch(
            real.batches.at(epoch, t - (epoch - 1) * real.clock.steps_per_epoch), t
        )
        for group in optimizer.param_groups:
            group["lr"] = task.lr(epoch * real.clock.steps_per_epoch, real.clock)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
        for name, tensor in model.state_dict().items():
            if decay is not None and tensor.is_floating_point():
                average[name] = decay * average[name] + (1 - decay) * tensor
    return model, average


def test_solo_equals_plain_sgd_bit_for_bit(tmp_path: Path):
    real = training(recipe(SOLO), tmp_path / "run")
    model, _ = plain_sgd(real)
    steps(real)
    assert same(dict(real.learners[0].params), dict(model.state_dict()))
    assert same(real.global_weights(), dict(model.state_dict()))


def test_one_task_with_a_decay_is_plain_weight_averaging(tmp_path: Path):
    real = training(recipe(SOLO + "[mix]\ndecay = 0.9"), tmp_path / "run", unfoldable64)
    model, average = plain_sgd(real, 0.9)
    steps(real)
    theta = real.global_weights()
    for name, tensor in model.state_dict().items():
        expected = average[name] if tensor.is_floating_point() else tensor
        assert torch.allclose(theta[name], expected, rtol=0, atol=1e-12), name
    assert same(dict(real.learners[0].params), dict(model.state_dict()))


def test_the_order_of_tasks_in_the_file_does_not_matter_up_to_rounding(tmp_path: Path):
    mix = MIX.replace("curve = 0.6", "curve = 0.6, rest = { natural = 0.7, l2 = 0.3 }")
    one, two = (
        steps(training(Recipe.loads(HEAD + "".join(tasks) + mix), tmp_path / str(number), unfoldable64))
        for number, tasks in enumerate([(LINF, NATURAL, L2), (L2, NATURAL, LINF)])
    )
    assert one.recipe.names == ("linf", "natural", "l2") and two.recipe.names == ("l2", "natural", "linf")
    theta = one.global_weights()
    for name, tensor in two.global_weights().items():
        assert torch.allclose(theta[name], tensor, rtol=0, atol=1e-10), name
    for learner in one.learners:
        twin = next(other for other in two.learners if other.task.name == learner.task.name)
        for name, tensor in twin.params.items():
            assert torch.allclose(learner.params[name], tensor, rtol=0, atol=1e-10), name


def test_four_learners_train_save_and_resume(tmp_path: Path):
    mix = MIX.replace("curve = 0.6", "curve = 0.4, rest = { natural = 0.5, l2 = 0.3, easy = 0.2 }")
    value = Recipe.loads(HEAD + LINF + NATURAL + L2 + EASY + mix)
    whole = go(value, tmp_path / "whole")
    with struck(Point(STEP, 19), give_up), pytest.raises(Killed):
        go(value, tmp_path / "run")
    run = go(value, tmp_path / "run", resume=True)
    assert remains(run.folder) == remains(whole.folder)
    shares = {e["learner"]: e["share"] for e in run.metrics() if e["event"] == "epoch"}
    assert shares == pytest.approx({"linf": 0.4, "natural": 0.3, "l2": 0.18, "easy": 0.12})
    assert {name: run.weights(name)[1]["t"] for name in (*value.names, "l2@best")}.keys() >= set(value.names)


def test_every_learner_starts_from_one_network_and_the_global_weights_too(tmp_path: Path):
    real = training(recipe(), tmp_path / "run")
    assert same(dict(real.learners[0].params), dict(real.learners[1].params))
    assert (
        real.learners[0].params["conv.weight"].data_ptr() != real.learners[1].params["conv.weight"].data_ptr()
    )
    assert same(real.global_weights(), dict(real.learners[0].params))


@pytest.mark.parametrize("momentum", ["keep", "reset"])
@pytest.mark.parametrize("averages", ["keep", "reset"])
def test_an_exchange_keeps_or_resets_momentum_and_averages(momentum: str, averages: str, tmp_path: Path):
    exchange = f"exchange = {{ start = 1, every = 1, momentum = '{momentum}', averages = '{averages}' }}"
    value = recipe(
        PAIR, ("exchange = { start = 1, every = 1 }", exchange), ("lr = 0.05", "lr = 0.05\naverage = 0.5")
    )
    real = steps(training(value, tmp_path / "run"), 3)
    theta, linf = real.mixer.global_weights(), real.learners[0]
    assert linf.average is not None
    assert same(dict(linf.params), theta)
    assert same(linf.average, theta) == (averages == "reset")
    assert len(linf.optimizer.state) == (0 if momentum == "reset" else 5)


@pytest.mark.parametrize("averages", ["keep", "reset"])
def test_a_soft_exchange_moves_learners_a_part_of_the_way(averages: str, tmp_path: Path):
    exchange = f"exchange = {{ start = 1, every = 1, strength = 0.25, averages = '{averages}' }}"
    value = recipe(
        PAIR, ("exchange = { start = 1, every = 1 }", exchange), ("lr = 0.05", "lr = 0.05\naverage = 0.5")
    )
    real = training(value, tmp_path / "run")
    for t in (1, 2, 3):
        real.step_learners(t)
    linf, theta = real.learners[0], real.mixer.global_weights()
    before = clone(linf.params)
    theta["bn.num_batches_tracked"].fill_(77)
    real.restart_learners(theta)
    for name, tensor in linf.params.items():
        moved = 0.75 * before[name] + 0.25 * theta[name] if tensor.is_floating_point() else theta[name]
        assert torch.equal(tensor, moved), name
    assert linf.average is not None
    assert same(linf.average, dict(linf.params)) == (averages == "reset")


def test_a_soft_exchange_of_full_strength_is_the_restart_of_the_papers(tmp_path: Path):
    full = recipe(PAIR, ("every = 1 }", "every = 1, strength = 1.0 }"))
    soft = recipe(PAIR, ("every = 1 }", "every = 1, strength = 0.5 }"))
    assert full == recipe() and full.fingerprint() == recipe().fingerprint() != soft.fingerprint()
    assert "strength" not in full.dumps() and Recipe.loads(soft.dumps()) == soft
    whole = go(soft, tmp_path / "whole")
    with struck(Point(STEP, 9), give_up), pytest.raises(Killed):
        go(soft, tmp_path / "run")
    assert remains(go(soft, tmp_path / "run", resume=True).folder) == remains(whole.folder)


def test_tasks_of_one_stream_train_on_the_same_augmented_images(tmp_path: Path):
    def first(text: str, out: str) -> list[Tensor]:
        real = training(Recipe.loads(text), tmp_path / out)
        return [learner.prepare_batch(real.batches.at(1, 1), 1).x for learner in real.learners]

    shared = first(PAIR, "shared")
    assert torch.equal(*shared)
    own = first(PAIR.replace('name = "natural"', 'name = "natural"\naugment_stream = "own"'), "own")
    assert torch.equal(own[0], shared[0]) and not torch.equal(own[1], shared[1])


class Watched:
    """A split that notes which images were fetched."""

    def __init__(self, split: Split) -> None:
        self.split, self.seen = split, set[int]()

    def __len__(self) -> int:
        return len(self.split)

    @property
    def labels(self) -> Tensor:
        return self.split.labels

    def fetch(self, index: Tensor) -> Tensor:
        self.seen |= set(index.tolist())
        return self.split.fetch(index)


def watched() -> tuple[Data, Watched, Watched]:
    plain = blobs(48)
    split, test = Watched(plain.train), Watched(plain.test)
    data = Data("blobs", split, test, plain.classes)
    split.seen.clear()
    test.seen.clear()
    return data, split, test


RECALIBRATED = PAIR.replace("decay = 0.8", "decay = 0.8\nbuffers = 'recalibrate'")


def test_validation_images_are_never_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data, split, _ = watched()
    real = training(Recipe.loads(RECALIBRATED), tmp_path / "run", data=data)
    monkeypatch.setattr(type(real.selection), "measure", lambda self, theta, t: {"best": False})
    split.seen.clear()
    steps(real)
    held_out: Any = real.selection.split
    assert len(held_out) == 12
    assert split.seen == set(range(48)) - set(held_out.index.tolist())


def test_test_images_are_read_only_if_the_recipe_selects_on_them(tmp_path: Path):
    data, _, test = watched()
    go(Recipe.loads(RECALIBRATED), tmp_path / "run", data=data)
    assert test.seen == set()
    run = go(recipe(PAIR, ("[validation]", "[validation]\non = 'test'")), tmp_path / "test", data=data)
    assert test.seen == set(range(30))
    assert {e["selected_on"] for e in run.metrics() if e["event"] == "validation"} == {"test"}
    assert run.weights("best")[1]["selected_on"] == run.weights()[1]["selected_on"] == "test"


def test_selecting_on_the_test_set_trains_on_every_training_image(tmp_path: Path):
    data, split, _ = watched()
    value = recipe(SOLO, ("[validation]", "[validation]\non = 'test'"), ("epochs = 3", "epochs = 1"))
    go(value, tmp_path / "run", data=data)
    assert split.seen == set(range(48))


class Faulty(Tiny):
    """Answers with NaN from its n-th training pass on, or never."""

    def __init__(self, call: int | None) -> None:
        super().__init__()
        self.call, self.passes = call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().forward(x) * (float("nan") if self.passes == self.call else 1.0)


@pytest.mark.parametrize("text", [SOLO, PAIR])
def test_a_run_that_diverges_keeps_its_last_checkpoint_and_can_be_resumed(text: str, tmp_path: Path):
    calls: list[int | None] = [8]

    def network() -> nn.Module:
        return Faulty(calls[0])

    value = recipe(text)
    first = value.names[0]
    with pytest.raises(Diverged, match=f"learner {first}, epoch 3, step 8: the loss is nan; try a smaller"):
        go(value, tmp_path / "run", model=network)
    latest = Run(tmp_path / "run").latest_checkpoint()
    assert latest is not None and latest.name == "step-00000006"
    calls[0] = None
    run = go(value, tmp_path / "run", model=network, resume=True)
    assert remains(run.folder) == remains(go(value, tmp_path / "whole", model=network).folder)


@pytest.mark.parametrize("lr", [1e12, 1e30, 1e38])
def test_a_learning_rate_that_is_far_too_large_never_finishes(lr: float, tmp_path: Path):
    value = recipe(SOLO, ('lr = { kind = "linear", at = [0, "100%"], to = [0.1, 0.02] }', f"lr = {lr}"))
    with pytest.raises(Diverged, match=r"learner natural, epoch \d, step \d: the (loss is|weights after it)"):
        go(
            value,
            tmp_path / "run",
            model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 3)),
        )
    assert not Run(tmp_path / "run").finished


def test_a_model_or_data_from_python_must_be_passed_again(tmp_path: Path):
    with struck(Point(STEP, 7), give_up), pytest.raises(Killed):
        go(recipe(SOLO), tmp_path / "run")
    value = Run(tmp_path / "run").recipe
    with pytest.raises(
        RecipeError, match=r'data: given from Python as "blobs".* give it again, also to resume'
    ):
        train(value, tmp_path / "run", resume=True)
    with pytest.raises(RecipeError, match=r"model: given from Python as .*tiny.* pass it again: load"):
        train(value, tmp_path / "run", resume=True, data=blobs(48))
    with pytest.raises(
        RunError, match="had 36 images to train on, now there are 38; resume with the same data"
    ):
        go(recipe(SOLO), tmp_path / "run", resume=True, data=blobs(50))
    assert go(recipe(SOLO), tmp_path / "run", resume=True).finished


def test_a_resumed_run_needs_the_same_images(tmp_path: Path):
    whole = go(recipe(SOLO), tmp_path / "whole")
    with struck(Point(STEP, 7), give_up), pytest.raises(Killed):
        go(recipe(SOLO), tmp_path / "run")
    given, message = blobs(48), "run: was trained on other images or labels than those given now"
    mine = given.train
    assert isinstance(mine, TensorSplit)
    others = (
        TensorSplit(1 - mine.images, mine.labels, 3),
        TensorSplit(mine.images, mine.labels.roll(1), 3),
        TensorSplit(mine.images.flip(0), mine.labels.flip(0), 3),
    )
    for other in others:
        with pytest.raises(RunError, match=f"{message}, or in another order; resume with the same data"):
            go(recipe(SOLO), tmp_path / "run", resume=True, data=replace(given, train=other))
    again = go(recipe(SOLO), tmp_path / "run", resume=True)
    assert remains(again.folder) == remains(whole.folder)


def test_too_many_validation_images_raise_a_recipe_error(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"validation.images: .*got 48 of 48 training images"):
        go(recipe(SOLO, ("images = 12", "images = 48")), tmp_path / "run")


def test_the_images_are_split_once_and_the_first_network_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    built, cut = list[nn.Module](), list[int]()
    hold_out = training_data.hold_out

    def network() -> nn.Module:
        built.append(tiny())
        return built[-1]

    def counted(train: Split, count: int, rng: Rng) -> tuple[Split, Split]:
        cut.append(count)
        return hold_out(train, count, rng)

    monkeypatch.setattr(training_data, "hold_out", counted)
    run = go(recipe(), tmp_path / "run", model=network)
    assert (len(built), cut) == (1, [12])
    with Rng(5).fold_in("init").seed_global():
        start = tiny()
    assert same(dict(built[0].state_dict()), dict(start.state_dict())), "only copies of it are trained"
    assert run.finished


@pytest.mark.parametrize(
    "change",
    [("images = 12", "images = 48"), ("epochs = 3", "epochs = 3\ninit = { kind = 'run', run = 'nowhere' }")],
)
def test_a_recipe_that_cannot_run_leaves_no_folder_behind(change: tuple[str, str], tmp_path: Path):
    with pytest.raises((RecipeError, RunError)):
        go(recipe(SOLO, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_does_not_need_the_runs_that_it_started_from(tmp_path: Path):
    start = go(recipe(SOLO, ("epochs = 3", "epochs = 1")), tmp_path / "start")
    value = recipe(f"init = {{ kind = 'run', run = '{start.folder}' }}\n" + SOLO)
    whole = go(value, tmp_path / "whole")
    with struck(Point(STEP, 7), give_up), pytest.raises(Killed):
        go(value, tmp_path / "run")
    start.folder.rename(tmp_path / "moved")
    assert remains(go(value, tmp_path / "run", resume=True).folder) == remains(whole.folder)
