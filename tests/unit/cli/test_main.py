from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main

from allrounder import report
from allrounder.cli import main as cli
from allrounder.config.decode import json_schema
from allrounder.data.files.cache import CACHE_VARIABLE
from allrounder.errors import (
    DataError,
    Diverged,
    Interrupted,
    MissingLibraryError,
    RecipeError,
    RunError,
    ThreatError,
    WorldError,
)
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.training.run import Run
from tests.support.networks import blobs
from tests.support.offenders import check_each


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def allrounder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process; exit code and both streams come back."""
    root: Any = cli.app.registered_callback
    # A callback's answer takes the place of its option, whose type is then not what beartype expects.
    monkeypatch.setattr(root, "callback", inspect.unwrap(root.callback))

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["allrounder", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
            sys.exit(0)
        captured, code = capsys.readouterr(), stopped.value.code
        plain = [re.sub("\x1b\\[[0-9;]*m", "", text) for text in captured]  # some machines force colours
        return Answer(code if isinstance(code, int) else 0, *plain)

    return run


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Overrides that make a shipped recipe train in a moment."""
    return [word for text in overrides(tmp_path) for word in ("--set", text)]


def overrides(folder: Path) -> list[str]:
    """What makes a recipe small, with its data in a file of this folder."""
    data, file = blobs(train=24, test=6), folder / "blobs.npz"
    everything = {
        f"{letter}_{part}": array
        for part, split in (("train", data.train), ("test", data.test))
        for letter, array in (
            ("x", split.fetch(torch.arange(len(split))).numpy()),
            ("y", split.labels.numpy()),
        )
    }
    np.savez(file, allow_pickle=False, **everything)
    return [
        f'data={{ kind = "npz", path = "{file}" }}',
        "model.width=1",
        "epochs=1",
        "batch_size=8",
        "validation.images=6",
        "validation.train_images=0",
        "validation.threats=[]",
    ]


def flat(text: str) -> str:
    """Without the line breaks and frames that a narrow terminal makes."""
    return " ".join(text.replace("\u2502", " ").split())


COMMON = {"--debug", "--quiet", "-q"}
"""Options of every verb."""
OPTIONS = {
    "": {"--version", "--install-completion", "--show-completion"},
    "train": {"--out", "--set", "--resume", "--threads", "--workers", "--tensorboard"},
    "new": {"--from"},
    "list": {"--method"},
    "show": {"--set"},
    "plan": {"--set", "--steps"},
    "schema": set[str](),
    "ls": set[str](),
    "log": {"--rows"},
    "watch": {"--port", "--open"},
    "theory": {"--solo", "--n"},
    "demo": {"--out", "--workers", "--set"},
    "sweep": {"--out", "--workers", "--launcher", "--dry-run", "--only"},
    "compare": {"--n", "--seeds", "--set", "--out", "--workers", "--launcher", "--dry-run"},
    "table": {"--out", "--style", "--columns", "--rows", "--notes"},
    "publish": {"--out", "--to"},
    "report": {"--out", "-o", "--title", "--gallery", "--no-gallery"},
    "figure": {"--out", "-o", "--chart", "--rows"},
    "export": {"--to", "--which", "--out", "--about", "--threat", "--attack", "--n", "--data"},
    "eval": {
        *("--suite", "--threat", "--attack", "--budget", "--n", "--seed", "--batch-size", "--workers"),
        *("--out", "--which", "--model", "--weights", "--weights-key", "--data"),
        *("--save-examples", "--force", "--style", "--ood", "--ood-data", "--source-normalise"),
        *("--source", "--source-model", "--eot", "--no-masking-check"),
        *("--table", "--normalise"),
    },
    "doctor": {"--which", "--model", "--weights", "--weights-key", "--normalise", "--data", "--threat"},
    "dial": {
        *("--points", "--shares", "--pick", "--by", "--attack", "--threat", "--n", "--workers", "--out"),
        *("--outputs", "--tolerance", "--statistics"),
    },
    "data": set[str](),
    "data get": {"--from"},
    "data check": set[str](),
    "data where": set[str](),
    "data make-c": {"--out", "--corruption", "--seed"},
    "data make-p": {"--out", "--perturbation", "--seed"},
}
FROZEN = (
    "the command line is frozen: what belongs to a method or a training is a field of the recipe, "
    "reached with --set; a new verb or an option of the process itself needs a decision record"
)


def commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(cli.app)
    top_level = {"": root, **root.commands}
    groups = {
        name: command.commands for name, command in top_level.items() if name and hasattr(command, "commands")
    }
    within = {f"{group} {name}": verb for group, verbs in groups.items() for name, verb in verbs.items()}
    return {**top_level, **within}


def options(command: Any) -> set[str]:
    named = [p for p in command.params if p.param_type_name == "option"]
    return {name for p in named for name in (*p.opts, *p.secondary_opts)}


def test_the_options_of_the_command_line_are_frozen():
    expected = {name: names if name in ("", "data") else names | COMMON for name, names in OPTIONS.items()}
    assert {name: options(command) for name, command in commands().items()} == expected, FROZEN


def test_every_command_explains_all_its_options(allrounder: Command):
    for name, command in commands().items():
        for ask in ("--help", "-h"):
            answer = allrounder(*name.split(), ask)
            assert answer.code == 0
            assert all(option in answer.out for option in options(command) | {"--help", "-h"})
        assert (command.help or "").strip()
        assert all((getattr(p, "help", "") or "").strip() for p in command.params)


def test_no_command_prints_the_help(allrounder: Command):
    answer = allrounder()
    assert answer.code == 2
    assert "Usage: allrounder" in answer.out + answer.err


def test_the_version_includes_that_of_torch(allrounder: Command):
    answer = allrounder("--version")
    assert answer.code == 0
    assert answer.out.startswith("allrounder 0.") and torch.__version__ in answer.out


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*shipped_recipes()][::12], id="some"),
        pytest.param([*shipped_recipes()], id="all", marks=pytest.mark.slow),
    ],
)
def test_show_prints_a_recipe_as_a_file_that_loads(
    names: list[str], allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))  # so that published data is nowhere

    def check(name: str) -> None:
        answer = allrounder("show", name)
        recipe = Recipe.load(name)
        assert answer.code == 0
        assert Recipe.loads(answer.out) == recipe
        first, files, *lines = answer.out.splitlines()
        assert first == f"# {name}, fingerprint {recipe.fingerprint()}"
        folder = name.partition("/")[0]
        base = {"cifar100": "cifar10", "small": "embedded"}.get(folder, folder)
        assert files.startswith(f"# from: {base}/_base.toml, ")
        stages = [line for line in lines if line.startswith("# stage ")]
        assert len(stages) == (0 if recipe.pipeline is None else len(recipe.stage_recipes()))
        assert all(line.endswith("forward/backward passes per step") for line in stages)
        expected = (
            "training images" if name.startswith("embedded/") else f"sizes as published: data: {tmp_path}"
        )
        following = lines[len(stages)]
        assert following.startswith("# ") and expected in following

    check_each(names, check)


def test_show_prints_the_files_of_a_recipe(allrounder: Command, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "cifar100/trades-6-wrn"\n', encoding="utf-8")
    lines = allrounder("show", str(file)).out.splitlines()
    assert lines[1] == (
        "# from: cifar10/_base.toml, cifar10/trades-6.toml, cifar10/_wrn.toml, "
        "cifar10/_variants.toml (trades-6-wrn), cifar100/_data.toml, "
        f"cifar100/_variants.toml (trades-6-wrn), {file}"
    )


SHORT = ("--set", "mix.decay=0.99", "--set", "epochs=2")
SHORT_NOTE = (
    "mix.decay: a time constant of 100 steps does not shrink with the run; it is 15.2% of 12 epochs, "
    'but 90.9% of 2; use { kind = "time-constant", over = "15%" } to scale it with the run'
)


def test_show_counts_images_and_compares_the_average_of_a_shortened_run(allrounder: Command):
    out = allrounder("show", "embedded/generalist-t", *SHORT).out
    assert "# 3500 training images in 55 steps per epoch; 500 held-out training images select" in out
    assert f"# note: {SHORT_NOTE}" in out
    assert "does not shrink" not in allrounder("show", "embedded/generalist-t", *SHORT[:2]).out


def test_train_and_plan_print_the_note_about_a_shortened_run(
    allrounder: Command, small: list[str], tmp_path: Path
):
    note = "note: mix.decay: a time constant of 100 steps does not shrink with the run; it is "
    words = ["embedded/generalist-t", *SHORT[:2], *small, "--set", "validation.threats=['Linf:0.1']"]
    trained = allrounder("train", *words, "--out", str(tmp_path / "run"))
    assert trained.code == 0 and note in flat(trained.out)
    images = "note: 18 training images in 3 steps per epoch; 6 held-out training images select"
    assert images in flat(trained.err)
    assert note in flat(allrounder("plan", *words, "--steps", "1").out)


def test_show_prints_warnings_as_comments(allrounder: Command):
    late = ("--set", "mix.exchange={ start = 300, every = 1 }")
    answer = allrounder("show", "embedded/generalist-t", *late)
    assert "# note: no exchange ever happens: it starts at 300, every 1, of " in answer.out
    early = ("--set", 'mix.exchange={ start = "0%", every = "10%" }', "--set", "mix.decay=0.999")
    answer = allrounder("show", "embedded/generalist-t", *early)
    assert "# note: the global average has a time constant of 1000 steps" in answer.out
    assert Recipe.loads(answer.out) == Recipe.load("embedded/generalist-t", [early[1], early[3]])


def test_show_works_without_the_data(allrounder: Command, tmp_path: Path):
    missing = f'data={{ kind = "npz", path = "{tmp_path / "no.npz"}" }}'
    answer = allrounder("show", "embedded/nt", "--set", missing)
    assert answer.code == 0
    assert "# number of steps unknown, exchanges not checked: data:" in answer.out
    assert Recipe.loads(answer.out) == Recipe.load("embedded/nt", [missing])


def test_show_checks_exchanges_of_published_data_without_its_files(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    answer = allrounder("show", "imagenet/generalist-t")
    assert "# sizes as published: data:" in answer.out
    assert "# 1276167 training images in 9971 steps per epoch; " in answer.out
    assert "; 2393040 steps in total" in answer.out
    early = ("--set", "mix.exchange={ start = 1, every = 1 }")
    answer = allrounder("show", "cifar10/generalist-t", *early)
    assert "# note: " in answer.out and "exchanges happen while the share of linf is 1" in answer.out


def test_a_plan_is_printed_and_leaves_no_folder(
    allrounder: Command, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    answer = allrounder("plan", "embedded/nt", "--steps", "1", *small)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("network: ")
    assert "learner natural: 1/1 forward/backward passes per step" in answer.out
    assert "started now, it would finish at " in answer.out and "embedded-nt 3/3" in answer.out
    assert sorted(tmp_path.iterdir()) == before


def test_the_schema_is_json(allrounder: Command):
    answer = allrounder("schema")
    assert answer.code == 0
    assert json.loads(answer.out) == json_schema(Recipe)


@pytest.mark.parametrize("verb", ["train", "show"])
def test_an_unknown_recipe_is_a_mistake_of_usage_with_the_nearest_name(allrounder: Command, verb: str):
    answer = allrounder(verb, "embedded/generalst-t")
    assert answer.code == 2
    assert 'did you mean "embedded/generalist-t"?' in flat(answer.err)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs=many", "epochs: expected a whole number, got 'many'"),
        ("task.natural.objective.kind=ntural", 'did you mean "natural"?'),
        ("task.linf.lr=1", 'override task.linf.lr=1: no member "linf" (there are: natural)'),
        ("epochs", "override epochs: expected a.b=value"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "show"])
def test_a_wrong_override_is_a_mistake_of_usage(allrounder: Command, verb: str, text: str, message: str):
    answer = allrounder(verb, "embedded/nt", "--set", text)
    assert answer.code == 2
    assert message in flat(answer.err)
    assert answer.out == ""


def test_several_mistakes_are_all_shown(allrounder: Command):
    answer = allrounder(
        "train", "embedded/nt", "--set", "epochs=0", "--set", "batch_size=1", "--set", "seeed=1"
    )
    assert answer.code == 2
    assert all(
        word in answer.err for word in ("epochs: ", "batch_size: ", "seeed: ", "embedded/nt cannot be run")
    )


@pytest.mark.parametrize("option", [["--steps", "3"], ["--threads", "0"], ["--threads", "x"], ["--epochs=3"]])
def test_an_unknown_option_is_a_mistake_of_usage(allrounder: Command, option: list[str]):
    assert allrounder("train", "embedded/nt", *option).code == 2


def test_a_tiny_training_leaves_a_run_folder(allrounder: Command, small: list[str], tmp_path: Path):
    out = tmp_path / "run"
    answer = allrounder("train", "embedded/nt", "--out", str(out), "--threads", "1", *small)
    assert answer.code == 0, answer.err
    assert f"run folder: {out}" in answer.out.replace("\n", "")
    assert ", epoch 1, natural " in answer.out
    for file in ("recipe.toml", "env.json", "metrics.jsonl"):
        assert (out / file).is_file()
    run = Run(out)
    assert run.finished
    assert run.recipe == Recipe.load("embedded/nt", small[1::2])
    again = allrounder("train", "embedded/nt", "--out", str(out), "--threads", "1", *small)
    assert again.code == 0
    assert "already finished" in again.err
    other = allrounder("train", "embedded/nt", "--out", str(out), *small, "--set", "seed=1")
    assert other.code == 1
    assert "holds a run of another recipe" in flat(other.err)
    assert Run(out).recipe == run.recipe


def test_workers_are_processes_with_the_same_command(
    allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[Any] = []
    monkeypatch.setattr("allrounder.cli.run_train.launch_processes", lambda *call: calls.append(call) or 75)
    words = ("embedded/nt", "--out", str(tmp_path / "run"), "--set", "epochs=1", "--resume")
    assert allrounder("train", *words, "--workers", "3").code == 75, "the code is passed on"
    expected = ["train", *words[:3], "--threads", str(torch.get_num_threads()), *words[3:]]
    assert calls == [(expected, 3)]
    assert not (tmp_path / "run").exists(), "all is left to them"


def test_a_folder_that_is_not_a_run_stays_unchanged(allrounder: Command, small: list[str], tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    answer = allrounder("train", "embedded/nt", "--out", str(tmp_path / "mine"), *small)
    assert answer.code == 1
    assert "exists and is not a run folder" in flat(answer.err)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_run_folder_is_named_after_recipe_and_fingerprint(
    allrounder: Command, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert allrounder("train", "embedded/nt", *small).code == 0
    recipe = Recipe.load("embedded/nt", small[1::2])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"embedded-nt-{recipe.fingerprint()}"]
    own = tmp_path / "folder" / "own.toml"
    own.parent.mkdir()
    own.write_text(recipe.dumps().replace('name = "embedded/nt"', 'name = "own"'), encoding="utf-8")
    assert allrounder("train", str(own)).code == 0
    assert (tmp_path / "runs" / f"own-{recipe.fingerprint()}" / "recipe.toml").is_file()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Interrupted("run: SIGTERM after step 3; continue with --resume"), 75),
        (RecipeError("x.toml cannot be run: [bold]"), 2),
        (RunError("folder: [0] is taken"), 1),
        (ThreatError("outside"), 1),
        (DataError("no such dataset"), 1),
        (WorldError("launched with WORLD_SIZE=2"), 1),
        (Diverged("the loss is nan"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_errors_of_the_user_are_one_message_and_a_code(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
):
    def fail(**settings: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    answer = allrounder("whatever")
    assert answer.code == code
    assert str(error) in flat(answer.err)
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_the_demonstration_is_a_study(allrounder: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    arguments: list[Any] = []
    monkeypatch.setattr(
        "allrounder.cli.run_study.run_study", lambda *values, **more: arguments.extend([*values, more])
    )
    reported: list[Path] = []
    monkeypatch.setattr("allrounder.cli.run_study.write_demo_report", reported.append)
    answer = allrounder("demo", "--out", str(tmp_path), "--workers", "3", "--set", "epochs=1")
    assert answer.code == 0, answer.err
    study, folder, workers, launcher, more = arguments
    assert (study.sets, folder, workers, launcher) == (("epochs=1",), tmp_path, 3, "local")
    assert study.labels()[0] == "NT" and len(study.trials()) == 7 and more == {"dry": False, "only": None}
    assert reported == [tmp_path]


@pytest.mark.slow
def test_the_demonstration_ends_with_its_report(allrounder: Command, tmp_path: Path):
    short = ["epochs=1", "train_images=100", "model.width=2", "validation.every='100%'"]
    answer = allrounder("demo", "--out", str(tmp_path), *(word for text in short for word in ("--set", text)))
    assert answer.code == 0, answer.err
    report = tmp_path / "report.html"
    assert answer.out.rstrip().endswith(str(report))
    assert "Generalist-T" in report.read_text(encoding="utf-8") and (tmp_path / "tradeoff.svg").is_file()


def test_the_demonstration_without_the_libraries_of_reports_says_what_to_install(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("allrounder.cli.run_study.run_study", lambda *values, **more: None)
    monkeypatch.setattr("allrounder.report.__getattr__", missing_library)
    for name in ("build_charts", "save_figure", "write_page"):
        monkeypatch.delitem(vars(report), name, raising=False)
    monkeypatch.delitem(sys.modules, "allrounder.cli.run_report", raising=False)
    answer = allrounder("demo", "--out", str(tmp_path))
    assert answer.code == 0 and "no report: matplotlib is missing" in answer.out


def missing_library(name: str) -> None:
    raise MissingLibraryError("matplotlib is missing")


def test_the_option_tensorboard_is_an_override(allrounder: Command, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    monkeypatch.setattr("allrounder.cli.run_train.run_train", lambda *values: calls.append(values))
    assert allrounder("train", "embedded/nt", "--set", "epochs=1", "--tensorboard").code == 0
    assert allrounder("train", "embedded/nt").code == 0
    assert [sets for _, sets, *_ in calls] == [("epochs=1", "tensorboard=true"), ()]


def test_the_package_runs_as_a_module():
    process = subprocess.run(
        [sys.executable, "-m", "allrounder", "show", "nothing"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert "no such file, and no shipped recipe" in flat(process.stderr)
