"""The run folder: what it refuses, what it never touches, and what can be read back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from allrounder.errors import RecipeError, RunError
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.system.checked_files import read_json
from allrounder.training.run import FORMAT_VERSION, Run, describe_environment, load
from allrounder.training.train import train
from tests.support.damage import cut, damages, edit_json, flip
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import Tiny, blobs, same, tiny
from tests.support.trainings import SOLO, contents, go, recipe, remains

OTHER = ("seed = 5", "seed = 6")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(recipe(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the solo recipe leaves when nothing happens to it."""
    return remains(go(recipe(SOLO), tmp_path_factory.mktemp("whole") / "run").folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in step 7, so that there is a checkpoint of step 6."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with struck(Point(STEP, 7), give_up), pytest.raises(Killed):
        go(recipe(SOLO), folder)
    return folder


@pytest.fixture
def unfinished(stopped: Path, tmp_path: Path) -> Path:
    """A copy to do with as one likes."""
    return shutil.copytree(stopped, tmp_path / "run")


def checkpoint(folder: Path) -> Path:
    path = Run(folder).latest_checkpoint()
    assert path is not None and path.name == "step-00000006"
    return path


def test_a_run_folder_holds_only_tensors_and_text(finished: Run):
    kinds = {path.suffix or path.name for path in finished.folder.rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json", ".jsonl", ".toml", ".lock"}
    assert not [name for name, data in contents(finished.folder).items() if b"pickle" in data]


def test_a_finished_run_is_returned_unchanged(finished: Run):
    before = contents(finished.folder)
    messages: list[str] = []

    class Listener:
        def begin(self, total: int, done: int) -> None:
            pytest.fail("it began")

        def step(self, t: int) -> None:
            pytest.fail("it took a step")

        def log(self, text: str) -> None:
            messages.append(text)

    for resume in (False, True):
        again = go(recipe(), finished.folder, resume=resume, progress=Listener())
        assert again.folder == finished.folder
    assert contents(finished.folder) == before
    assert messages == [f"{finished.folder}: already finished"] * 2


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_of_another_recipe_is_not_changed(resume: bool, finished: Run, unfinished: Path):
    for folder in (finished.folder, unfinished):
        before = contents(folder)
        with pytest.raises(RunError, match=r"holds a run of another recipe.*nothing was changed"):
            go(recipe(SOLO, OTHER), folder, resume=resume)
        assert contents(folder) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_not_a_run_is_not_changed(resume: bool, tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"cat")
    (tmp_path / "recipe.toml").write_text("text")
    before = contents(tmp_path)
    for name in ("photos", "recipe.toml"):
        with pytest.raises(RunError, match=f"{name}: exists and is not a run folder; choose another folder"):
            go(recipe(SOLO), tmp_path / name, resume=resume)
    assert contents(tmp_path) == before


def test_an_empty_folder_may_be_used(tmp_path: Path):
    (tmp_path / "run").mkdir()
    assert not Run.open_or_create(tmp_path / "run", recipe(), resume=False).finished


def test_an_unfinished_run_continues_only_with_resume(unfinished: Path):
    before = contents(unfinished)
    with pytest.raises(RunError, match="holds an unfinished run; continue with --resume"):
        go(recipe(SOLO), unfinished)
    assert contents(unfinished) == before
    assert go(recipe(SOLO), unfinished, resume=True).finished


def test_a_run_that_stopped_before_its_first_checkpoint_starts_again(tmp_path: Path, whole):
    with struck(Point(STEP, 2), give_up), pytest.raises(Killed):
        go(recipe(SOLO), tmp_path / "run")
    run = go(recipe(SOLO), tmp_path / "run")
    assert remains(run.folder) == whole


def test_the_name_is_not_part_of_the_fingerprint(unfinished: Path):
    assert go(recipe("name = 'x'\nabout = 'y'\n" + SOLO), unfinished, resume=True).finished


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_cannot_train_in_one_folder(unfinished: Path):
    before = contents(unfinished)
    words = [sys.executable, "-c", HOLD, str(unfinished / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="another process is training here; wait for it or stop it"):
            go(recipe(SOLO), unfinished, resume=True)
        assert contents(unfinished) == before
        other.kill()
    assert go(recipe(SOLO), unfinished, resume=True).finished, "the lock of a dead process holds nobody"


@pytest.mark.parametrize("after", [False, True])
def test_two_processes_cannot_begin_in_one_folder(after: bool, tmp_path: Path):
    folder = tmp_path / "run"
    overtaken = Point("allrounder.training.run:_check_unused", after=after)
    with (
        struck(overtaken, lambda: Run.open_or_create(folder, recipe(SOLO, OTHER), resume=False)),
        pytest.raises(RunError, match="holds a run of another recipe"),
    ):
        Run.open_or_create(folder, recipe(SOLO), resume=False)
    assert Run(folder).recipe.seed == 6


def test_the_resolved_recipe_is_in_the_folder(finished: Run):
    assert (
        finished.recipe.fingerprint()
        == Recipe.loads((finished.folder / "recipe.toml").read_text()).fingerprint()
    )
    assert finished.recipe.names == ("linf", "natural")


def test_a_missing_run_folder_raises(tmp_path: Path):
    with pytest.raises(RunError, match=r"not a run folder, it has no recipe.toml"):
        Run(tmp_path)


def test_metrics_are_one_object_per_line_without_an_incomplete_last_line(finished: Run, tmp_path: Path):
    events = finished.metrics()
    assert [event["event"] for event in events[:3]] == ["epoch", "epoch", "validation"]
    run = Run.open_or_create(tmp_path / "run", recipe(), resume=False)
    assert run.metrics() == []
    run.log("one", t=1)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tw')
    assert run.metrics() == [{"event": "one", "t": 1}]


@pytest.mark.parametrize(
    ("name", "damage", "pattern"),
    [
        ("natural.safetensors", cut, "differs from its manifest"),
        ("natural.safetensors", flip, "differs from its manifest"),
        ("natural.safetensors", Path.unlink, "cannot be read"),
        ("manifest.json", flip, r"manifest\.json: cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_nothing_is_changed(
    name: str, damage: Callable[[Path], object], pattern: str, unfinished: Path
):
    damage(checkpoint(unfinished) / name)
    with (unfinished / "metrics.jsonl").open("a") as file:
        file.write("what came after\n")
    before = contents(unfinished)
    with pytest.raises(RunError, match=pattern):
        go(recipe(SOLO), unfinished, resume=True)
    assert contents(unfinished) == before


def test_one_damaged_learner_prevents_the_restore_of_all(tmp_path: Path):
    with struck(Point(STEP, 13), give_up), pytest.raises(Killed):
        go(recipe(), tmp_path / "run")
    flip(checkpoint(tmp_path / "run") / "natural.safetensors")
    with (
        struck(Point("allrounder.training.learner:Learner.load_state_dict"), pytest.fail),
        pytest.raises(RunError, match=r"natural.safetensors: cannot be read \(it differs"),
    ):
        go(recipe(), tmp_path / "run", resume=True)


def test_a_checkpoint_without_a_manifest_is_ignored(unfinished: Path, whole):
    (checkpoint(unfinished) / "manifest.json").unlink()
    assert Run(unfinished).latest_checkpoint() is None
    run = go(recipe(SOLO), unfinished, resume=True)
    assert remains(run.folder) == whole


def test_a_checkpoint_of_another_recipe_is_refused(unfinished: Path):
    manifest = checkpoint(unfinished) / "manifest.json"
    edit_json(manifest, lambda facts: facts.update(fingerprint="0" * 12))
    with pytest.raises(RunError, match=r"belongs to another recipe, got 0+, expected .* was changed by hand"):
        go(recipe(SOLO), unfinished, resume=True)


def change_format(manifest: Path, version: object) -> None:
    """Write another format version, or none, into a JSON file."""
    new = {} if version is None else {"format": version}
    edit_json(manifest, lambda facts: (facts.pop("format"), facts.update(new)))


NO_FORMAT = "got no format version, expected format version 3; use the version of allrounder that wrote it"
OLD_FORMAT = "got format version 2, expected format version 3"
NEW_FORMAT = "got format version 4, expected format version 3"


@pytest.mark.parametrize(("version", "message"), [(None, NO_FORMAT), (2, OLD_FORMAT), (4, NEW_FORMAT)])
def test_a_run_folder_of_another_format_is_refused(version: object, message: str, unfinished: Path):
    change_format(unfinished / "format.json", version)
    before = contents(unfinished)
    for use in (lambda: Run(unfinished), lambda: go(recipe(SOLO), unfinished, resume=True)):
        with pytest.raises(RunError, match=rf"format\.json: {message}"):
            use()
    assert contents(unfinished) == before


def test_a_run_folder_without_a_format_is_refused(unfinished: Path):
    (unfinished / "format.json").unlink()
    with pytest.raises(RunError, match=f"run: {NO_FORMAT}"):
        Run(unfinished)
    (unfinished / "format.json").write_text('{"form')
    with pytest.raises(RunError, match=r"format.json: cannot be read"):
        Run(unfinished)


@pytest.mark.parametrize(("version", "message"), [(None, NO_FORMAT), (2, OLD_FORMAT), (4, NEW_FORMAT)])
def test_a_checkpoint_of_another_format_is_refused(version: object, message: str, unfinished: Path):
    manifest = checkpoint(unfinished) / "manifest.json"
    change_format(manifest, version)
    edit_json(manifest, lambda facts: facts.pop("sums"))  # another format may have other fields
    before = contents(unfinished)
    with pytest.raises(RunError, match=rf"step-00000006/manifest\.json: {message}"):
        go(recipe(SOLO), unfinished, resume=True)
    assert contents(unfinished) == before


@pytest.mark.parametrize(("version", "message"), [(None, NO_FORMAT), (2, OLD_FORMAT), (4, NEW_FORMAT)])
def test_weights_of_another_format_are_refused(version: object, message: str, finished: Run, tmp_path: Path):
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    manifest = folder / "weights" / "last-00000009" / "manifest.json"
    change_format(manifest, version)
    edit_json(manifest, lambda facts: facts.pop("classes"))  # another format may have other fields
    with pytest.raises(RunError, match=rf"last-00000009/manifest\.json: {message}"):
        load(folder, model=tiny)
    assert load(folder, "best", model=tiny)


def test_a_folder_of_a_run_killed_before_its_recipe_was_written_may_be_used(tmp_path: Path, whole):
    with struck(Point("pathlib:Path.replace", mentions=".recipe.toml.tmp"), give_up), pytest.raises(Killed):
        go(recipe(SOLO), tmp_path / "run")
    assert (tmp_path / "run" / "format.json").exists() and not (tmp_path / "run" / "recipe.toml").exists()
    assert remains(go(recipe(SOLO), tmp_path / "run").folder) == whole


def test_leftovers_of_an_interruption_are_ignored_and_removed(unfinished: Path, whole):
    for name in (
        "checkpoints/.step-00000099.tmp",
        "weights/.best-00000099.tmp",
        "weights/.last-00000009.tmp",
    ):
        (unfinished / name).mkdir(parents=True)
        (unfinished / name / "manifest.json").write_text("{}")
    (unfinished / ".env.json.tmp").write_text("garbage")
    run = go(recipe(SOLO), unfinished, resume=True)
    assert remains(run.folder) == whole


def test_metrics_after_the_checkpoint_are_cut_off(unfinished: Path, whole):
    with (unfinished / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "epoch", "t": 99}\n\x00\xff garb')
    run = go(recipe(SOLO), unfinished, resume=True)
    assert remains(run.folder) == whole


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_metrics_shorter_than_at_the_checkpoint_raise(damage, unfinished: Path):
    damage(unfinished / "metrics.jsonl")
    before = contents(unfinished)
    with pytest.raises(
        RunError, match=r"metrics\.jsonl: .*got \d+ bytes, expected a line that ends after \d+"
    ):
        go(recipe(SOLO), unfinished, resume=True)
    assert contents(unfinished) == before


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_best_weights_prevent_a_resume_and_nothing_is_changed(
    damage: Callable[[Path], object], unfinished: Path
):
    (best,) = (unfinished / "weights").glob("best-*/global.safetensors")
    damage(best)
    before = contents(unfinished)
    message = r"best-\d+/global\.safetensors: cannot be read .*; restore it from a copy, or train again"
    with pytest.raises(RunError, match=message):
        go(recipe(SOLO), unfinished, resume=True)
    assert contents(unfinished) == before


def test_missing_best_weights_prevent_a_resume(unfinished: Path):
    shutil.rmtree(next((unfinished / "weights").glob("best-*")))
    with pytest.raises(RunError, match=r"best-\d+/manifest\.json: cannot be read .*no such file"):
        go(recipe(SOLO), unfinished, resume=True)


def test_damaged_sessions_prevent_a_resume_and_nothing_is_changed(unfinished: Path):
    Run(unfinished).log("epoch", t=99)  # after the checkpoint
    flip(unfinished / "env.json")
    before = contents(unfinished)
    with pytest.raises(RunError, match=r"env\.json: cannot be read .*; restore it from a copy, or remove it"):
        go(recipe(SOLO), unfinished, resume=True)
    assert contents(unfinished) == before


def read_run(folder: Path) -> tuple[object, ...]:
    """Everything that numbers are made of: events, sessions, recipe, and weights by name."""
    run = Run(folder)
    saved = [run.weights(which) for which in ("last", "best", "natural")]
    weights = [{name: tensor.tolist() for name, tensor in tensors.items()} for tensors, _ in saved]
    sessions = read_json(folder / "env.json", "", FORMAT_VERSION)
    return run.metrics(), run.recipe, weights, [facts for _, facts in saved], sessions


def test_damage_never_changes_a_number(tmp_path: Path):
    folder = go(recipe(SOLO), tmp_path / "run").folder
    intact = read_run(folder)
    files = [path for path in folder.rglob("*.*") if path.is_file() and "checkpoints" not in path.parts]
    files.remove(folder / ".lock")
    assert len({path.name for path in files}) == 7
    for file in files:
        content = file.read_bytes()
        for name, damaged in damages(content, 24):
            file.write_bytes(damaged)
            try:
                result = read_run(folder)
            except RunError as error:
                assert f"{file.name}: cannot be read" in str(error), name
            else:
                assert result == intact, f"{file.name}: {name}"
        file.write_bytes(content)


def test_damage_before_a_resume_never_changes_a_number(unfinished: Path, whole, tmp_path: Path):
    metrics = (unfinished / "metrics.jsonl").read_bytes()
    checkpointed = read_json(checkpoint(unfinished) / "manifest.json", "")["metrics_bytes"]
    refused = 0
    no_end = metrics[: checkpointed - 1] + b"\x0b" + metrics[checkpointed:] + b"later\n"
    for number, (name, damaged) in enumerate([*damages(metrics, 16), ("no end of line", no_end)]):
        folder = Path(shutil.copytree(unfinished, tmp_path / str(number)))
        (folder / "metrics.jsonl").write_bytes(damaged)
        if damaged[:checkpointed] == metrics[:checkpointed]:
            assert remains(go(recipe(SOLO), folder, resume=True).folder) == whole, name
            continue
        with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read"):
            go(recipe(SOLO), folder, resume=True)
        refused += 1
    assert refused > 4


def test_all_files_have_the_usual_permissions(tmp_path: Path):
    folder = go(recipe(SOLO), tmp_path / "run").folder
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    assert {path.stat().st_mode for path in folder.rglob("*") if path.is_file()} == {usual}


def test_weights_are_found_by_name(finished: Run):
    names = ("global", "last", "global@last", "best", "linf", "natural", "linf@best", "natural@last")
    result = {name: finished.weights(name) for name in names}
    assert same(result["global"][0], result["last"][0]) and same(result["last"][0], result["global@last"][0])
    best = max(
        (e for e in finished.metrics() if e["event"] == "validation"), key=lambda event: event["score"]
    )
    assert result["best"][1]["t"] == result["linf@best"][1]["t"] == best["t"]
    assert result["global"][1]["t"] == 9
    assert same(result["natural"][0], result["natural@last"][0])
    assert not same(result["linf"][0], result["linf@best"][0]) or best["t"] == 9


@pytest.mark.parametrize(
    ("which", "pattern"),
    [
        ("l2", 'has no weights "l2"; expected best, last, linf, natural, or NAME@best'),
        ("l2@best", 'has no weights "l2@best"; expected best, last, linf, natural, or NAME@best'),
        ("", 'has no weights ""'),
        ("linf@worst", "expected global, best, last, a learner's name, or NAME@best"),
    ],
)
def test_missing_weights_raise(which: str, pattern: str, finished: Run):
    with pytest.raises(RunError, match=pattern):
        finished.weights(which)
    with pytest.raises(RunError, match=pattern):
        finished.weights_file(which)
    with pytest.raises(RunError, match=pattern):
        load(finished.folder, which, model=tiny)


def test_weights_of_an_unfinished_run_are_the_best_so_far(unfinished: Path):
    with pytest.raises(
        RunError, match="has no last weights: the training is not finished; continue with --resume"
    ):
        load(unfinished, model=tiny)
    assert not load(unfinished, "best", model=tiny).training


def test_a_run_without_validation_has_no_best_weights(tmp_path: Path):
    run = go(recipe(SOLO, ("images = 12", "images = 0")), tmp_path / "run")
    assert not [event for event in run.metrics() if event["event"] == "validation"]
    with pytest.raises(RunError, match="has no best weights: no weights were selected yet"):
        run.weights("best")
    assert run.weights()[1]["t"] == 9


@pytest.mark.parametrize("which", ["global", "best", "linf", "natural@best"])
def test_a_loaded_network_has_the_saved_weights_and_is_ready_to_use(which: str, finished: Run):
    network = load(str(finished.folder), which, model=tiny)
    assert same(weights_of(network), finished.weights(which)[0])
    assert not any(module.training for module in network.modules())
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_a_network_of_the_package_is_built_again(tmp_path: Path):
    value = recipe(
        SOLO,
        ('{ kind = "python", name = "tiny" }', '{ kind = "small-cnn", width = 2 }'),
        ("epochs = 3", "epochs = 1"),
    )
    run = train(value, tmp_path / "run", data=blobs(48))
    assert same(weights_of(load(run.folder)), run.weights()[0])


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: Tiny(width=5), "bn.bias"),
        (lambda: Tiny(classes=1), "linear.bias"),
        (lambda: torch.nn.Flatten(), "bn.bias"),
    ],
)
def test_another_network_is_refused_before_any_weight_is_loaded(model, named: str, finished: Run):
    with pytest.raises(RunError, match=f"holds another network, {named} does not fit"):
        load(finished.folder, model=model)


def test_a_network_from_python_must_be_passed_again(finished: Run):
    with pytest.raises(RecipeError, match=r"model: given from Python as .*tiny"):
        load(finished.folder)


def test_a_damaged_weight_file_is_refused(tmp_path: Path):
    run = go(recipe(SOLO, ("epochs = 3", "epochs = 1")), tmp_path / "run")
    flip(next((run.folder / "weights").glob("last-*/global.safetensors")))
    with pytest.raises(RunError, match="differs from its manifest"):
        load(run.folder, model=tiny)
    assert load(run.folder, "natural", model=tiny)


def test_manifests_describe_the_weights(finished: Run):
    for which in ("global", "best"):
        facts = finished.weights(which)[1]
        assert facts["selected_on"] == "validation"
        assert (
            facts["classes"] == ["0", "1", "2"] and facts["shape"] == [1, 8, 8] and facts["data"] == "blobs"
        )
        assert facts["fingerprint"] == finished.recipe.fingerprint()
    assert finished.weights("best")[1]["score"] > 0


def test_a_session_that_may_change_rounding_gives_a_warning(tmp_path: Path):
    run = Run.open_or_create(tmp_path / "run", recipe(), resume=False)
    cpu = torch.device("cpu")
    assert run.record_session(cpu) == []
    assert run.record_session(cpu) == []
    torch.set_num_threads(2)
    try:
        assert run.record_session(cpu) == ["threads was 1, is 2: bits may differ from an uninterrupted run"]
    finally:
        torch.set_num_threads(1)
    (warning,) = run.record_session(cpu)
    assert warning.startswith("threads was 2, is 1")
    sessions = json.loads((run.folder / "env.json").read_text())["sessions"]
    assert [session["threads"] for session in sessions] == [1, 1, 2, 1]
    assert sessions[0].keys() >= describe_environment(cpu).keys()


def test_a_resumed_training_warns_about_another_number_of_threads(unfinished: Path):
    messages: list[str] = []

    class Listener:
        def begin(self, total: int, done: int) -> None:
            messages.append(f"{done} of {total}")

        def step(self, t: int) -> None: ...

        def log(self, text: str) -> None:
            messages.append(text)

    torch.set_num_threads(2)
    try:
        go(recipe(SOLO), unfinished, resume=True, progress=Listener())
    finally:
        torch.set_num_threads(1)
    threads, images, done = messages
    assert threads == "threads was 1, is 2: bits may differ from an uninterrupted run"
    assert images.startswith("36 training images") and done == "6 of 9"


def test_a_run_of_another_recipe_names_what_differs(unfinished: Path):
    with pytest.raises(RunError, match=r"they differ in epochs; choose another folder"):
        go(recipe(SOLO, ("epochs = 3", "epochs = 4")), unfinished, resume=True)


def test_unknown_weights_are_refused_with_a_suggestion(tmp_path: Path):
    run = go(recipe(SOLO), tmp_path / "run")
    with pytest.raises(
        RunError, match=r'run: has no weights "bset"; expected best, last, .* did you mean "best"'
    ):
        run.weights("bset")
