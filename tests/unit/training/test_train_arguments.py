"""What `train` and `load` accept from Python, and what they show."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from allrounder.errors import InputError, Interrupted, RecipeError
from allrounder.nn.state import weights_of
from allrounder.system.progress import TrainingStatus
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import PAIR, SOLO, EndsAfter, go, recipe, remains


class Sized(Tiny):
    """A network whose class needs an argument."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class Listener:
    """Records what a training reports."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def begin(self, total: int, done: int) -> None:
        self.events.append((done, total))

    def step(self, t: int) -> None:
        self.events.append(t)

    def log(self, text: str) -> None: ...

    def report(self, status: TrainingStatus) -> None:
        self.events.append(status)


def test_the_status_repeats_the_logged_metrics(tmp_path: Path):
    listener = Listener()
    run = go(recipe(), tmp_path / "run", progress=listener)
    statuses = [event for event in listener.events if isinstance(event, TrainingStatus)]
    assert statuses[0] == TrainingStatus(0, 3, next_exchange=1)
    assert [status.epoch for status in statuses] == [0, 1, 2, 3]
    assert [status.next_exchange for status in statuses] == [1, 2, None, None]
    for status in statuses[1:]:
        events = [event for event in run.metrics() if event.get("epoch") == status.epoch]
        learners = [event for event in events if event["event"] == "epoch"]
        assert status.losses == {event["learner"]: event["loss"] for event in learners}
        assert status.shares == {"linf": 0.6, "natural": 0.4}
        (validation,) = [event for event in events if event["event"] == "validation"]
        assert status.accuracies == {"natural": validation["natural"], **validation["robust"]}


@pytest.mark.parametrize("silence", [False, None])
def test_a_bar_is_shown_unless_progress_is_false_or_none(
    silence: bool | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    shown = go(recipe(SOLO), tmp_path / "shown")
    output, lines = capfd.readouterr()
    assert output == ""
    assert [line.partition(": loss")[0] for line in lines.splitlines() if "/3" in line] == [
        f"training: epoch {epoch}/3" for epoch in (1, 2, 3)
    ]
    silent = go(recipe(SOLO), tmp_path / "silent", progress=silence)
    assert capfd.readouterr() == ("", "")
    assert remains(shown.folder) == remains(silent.folder)


@pytest.mark.usefixtures("unchecked")
def test_a_progress_of_another_type_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="progress: got a list, expected True, False, or an object with"):
        go(recipe(SOLO), tmp_path / "run", progress=[])
    assert not (tmp_path / "run").exists()


def test_an_interruption_says_how_to_continue_in_python(tmp_path: Path):
    class Stop(Listener):
        def step(self, t: int) -> None:
            if t == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(
        Interrupted, match=r"SIGINT after step 2, the state is saved; continue with .*in Python: resume=True"
    ):
        go(recipe(SOLO), tmp_path / "run", progress=Stop())
    assert go(recipe(SOLO), tmp_path / "run", resume=True).finished


def test_a_network_is_copied_and_its_weights_are_the_initial_weights(tmp_path: Path):
    torch.manual_seed(3)
    network = Tiny()
    before = {name: tensor.clone() for name, tensor in weights_of(network).items()}
    still = recipe(SOLO, ('lr = { kind = "linear", at = [0, "100%"], to = [0.1, 0.02] }', "lr = 1e-9"))
    run = go(still, tmp_path / "run", model=cast(Any, network))
    trained = load(run, model=network)
    assert trained is not network
    for name, tensor in before.items():
        assert torch.equal(weights_of(network)[name], tensor), "the network of the caller changed"
        if not name.startswith("bn."):
            torch.testing.assert_close(weights_of(trained)[name], tensor)


def test_a_run_of_a_network_resumes_with_the_network_or_its_class(tmp_path: Path):
    torch.manual_seed(3)
    network = Tiny()
    whole = go(recipe(), tmp_path / "whole", model=cast(Any, network))
    for number, again in enumerate((network, Tiny)):
        with pytest.raises(KeyError):
            go(recipe(), tmp_path / str(number), model=cast(Any, network), progress=EndsAfter(5))
        run = go(recipe(), tmp_path / str(number), model=cast(Any, again), resume=True)
        assert remains(run.folder) == remains(whole.folder)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "resnet18",
            "model: got a str, expected a network, or a function .*; name networks .* recipe",
        ),
        (3, "model: got a int, expected a network, or a function or class .*; pass Net"),
        (Sized, r"model: Sized needs arguments \(missing a required argument: 'size'\).*; pass Sized\(...\)"),
        (lambda: "net", "model: the function returned a str, expected a torch.nn.Module"),
    ],
)
def test_a_model_that_builds_no_network_is_refused(model: Any, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        go(recipe(SOLO), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    run = go(recipe(SOLO), tmp_path / "good")
    with pytest.raises(InputError, match=message):
        load(run.folder, model=model)


def test_a_recipe_may_be_a_path_with_overrides(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(PAIR)
    run = train(
        str(file), str(tmp_path / "run"), overrides=["epochs=1"], model=tiny, data=blobs(48), progress=False
    )
    assert (run.recipe.epochs, run.recipe.name, run.finished) == (1, "mine", True)
    assert Run(str(run.folder)).recipe == run.recipe


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "overrides", "error", "message"),
    [
        (recipe(SOLO), ["epochs=1"], InputError, r"overrides: got \['epochs=1'\] beside a Recipe"),
        (
            "embedded/nt",
            "epochs=1",
            InputError,
            r"overrides: got the text 'epochs=1', .*\['epochs=1'\]",
        ),
        ("embedded/nt", ["epochs"], RecipeError, "override epochs: expected a.b=value"),
        (nn.Identity(), (), InputError, "recipe: got a Identity, expected a Recipe, or the name or path"),
        ("embedded/generalist", (), RecipeError, "no such file, and no shipped recipe"),
    ],
)
def test_a_wrong_recipe_is_refused(
    given: Any, overrides: Any, error: type[Exception], message: str, tmp_path: Path
):
    with pytest.raises(error, match=message):
        train(given, tmp_path / "run", overrides=overrides)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unchecked")
def test_data_that_is_not_a_dataset_is_refused(tmp_path: Path):
    pairs: tuple[Tensor, Tensor] = (torch.rand(4, 1, 8, 8), torch.arange(4) % 2)
    with pytest.raises(InputError, match=r"data: got a tuple, expected Data; .* allrounder.as_data"):
        go(recipe(SOLO), tmp_path / "run", data=cast(Any, pairs))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("run", [3, nn.Identity()])
def test_a_run_that_is_no_folder_is_refused(run: Any):
    with pytest.raises(InputError, match=r"run: got a .*, expected a Run or the path of its folder"):
        load(run)
