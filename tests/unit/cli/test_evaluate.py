from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from allrounder.cli import run_evaluate
from allrounder.evaluation.probes import SUITES, Probe
from allrounder.evaluation.store import RESULTS_FOLDER
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.statistics import format_percent
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.support.evaluations import images, trained_network
from tests.support.interruptions import Point, struck
from tests.unit.cli.test_main import Answer, Command, allrounder, flat, overrides
from tests.unit.evaluation.test_evaluate_inputs import brief

__all__ = ["allrounder", "brief"]  # fixtures

Ask = Callable[..., Answer]
LINF, PGD = ("--threat", "Linf:0.05"), ("--attack", "pgd-2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that took a moment."""
    folder = tmp_path_factory.mktemp("run")
    return train(Recipe.load("embedded/nt", overrides(folder)), folder / "run").folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Somebody's weights and images."""
    folder = tmp_path_factory.mktemp("files")
    x, y = images().fetch(torch.arange(24)).numpy(), images().labels.numpy()
    np.savez(folder / "images.npz", allow_pickle=False, x=x, y=y)
    weights = trained_network().state_dict()
    save_file(weights, folder / "weights.safetensors")
    torch.save(weights, folder / "weights.pt")
    torch.save({"net": weights, "ema": weights, "epoch": 3}, folder / "several.pt")
    torch.save(trained_network(), folder / "code.pt")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def ask(allrounder: Command, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`allrounder eval` on somebody's network."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*options: str, verb: str = "eval", weights: str = "weights.safetensors") -> Answer:
        what = ("--weights", str(files[weights]), "--data", str(files["images.npz"]))
        return allrounder(verb, "--model", "tests.support.networks:tiny", *what, *options)

    return command


def lines(folder: Path) -> dict[str, float]:
    """Every file with the time it was written."""
    return {str(path): path.stat().st_mtime_ns for path in (folder / RESULTS_FOLDER).rglob("*.safetensors")}


def shown(answer: Answer) -> list[str]:
    """What was printed, without progress."""
    return answer.out[answer.out.index("\u250f") :].splitlines()


def test_a_run_is_evaluated_under_its_threats_into_its_own_folder(allrounder: Command, run: Path):
    first = allrounder("eval", str(run), *PGD)
    assert first.code == 0, first.err
    folder = run / "eval" / "best"
    outcome = Outcome.load(folder / OUTCOME_FILE)
    assert list(outcome.predicted) == ["natural", "pgd-2@Linf:0.1", "pgd-2@L2:1.5"]
    assert outcome.facts["recipe"] == Run(run).recipe.fingerprint()
    assert (outcome.facts["weights"], outcome.facts["selected_on"]) == ("best", "validation")
    assert (outcome.facts["budget"], outcome.facts["images"], outcome.facts["threads"]) == ("standard", 6, 1)
    for attack, threat in outcome.columns():
        assert format_percent(outcome.accuracy(attack, threat)) in first.out
    expected = ("embedded/nt: 6 images of 6", "pgd-2@L2:1.5: ", "Weights 'best' selected on", "pgd-2 worst")
    assert all(text in first.out for text in expected)
    assert first.out.rstrip().replace("\n", "").endswith(f"results: {folder}/")
    assert "| model |" in (folder / "table.md").read_text(encoding="utf-8")
    before, whole = lines(folder), (folder / OUTCOME_FILE).read_bytes()
    again = allrounder("eval", str(run), *PGD)
    assert again.code == 0 and shown(again) == shown(first)
    assert "fooled" not in again.out  # nothing was done
    assert lines(folder) == before and (folder / OUTCOME_FILE).read_bytes() == whole
    last = allrounder("eval", str(run), *PGD, "--which", "last", "--quiet", "--force")
    assert last.code == 0 and (run / "eval" / "last" / OUTCOME_FILE).is_file()
    assert "selected_on" not in Outcome.load(run / "eval" / "last" / OUTCOME_FILE).facts


def test_threats_attacks_and_images_may_be_chosen_for_a_run(allrounder: Command, run: Path, tmp_path: Path):
    options = ("--threat", "L1:2", "--threat", "Linf:8/255", "--attack", "pgd-1", "--attack", "cw-1")
    answer = allrounder(
        "eval", str(run), "--out", str(tmp_path / "eval"), *options, "--n", "3", "--seed", "5"
    )
    assert answer.code == 0, answer.err
    outcome = Outcome.load(tmp_path / "eval" / OUTCOME_FILE)
    names = [f"{attack}@{threat}" for attack in ("pgd-1", "cw-1") for threat in ("L1:2", "Linf:8/255")]
    assert list(outcome.predicted) == ["natural", *names]
    assert (len(outcome), outcome.facts["seed"], outcome.facts["budget"]) == (3, 5, "3 images")
    other = allrounder("eval", str(run), "--out", str(tmp_path / "eval"), *options, "--seed", "6")
    assert other.code == 1
    assert "holds an evaluation with seed = 5, this one has 6" in flat(other.err)


@pytest.mark.usefixtures("brief")
def test_a_suite_gives_the_columns_of_a_table(ask: Ask, tmp_path: Path):
    answer = ask(*LINF, "--suite", "papers-plus", "--attack", "cw-1", "--n", "12", "--out", str(tmp_path))
    assert answer.code == 0, answer.err
    outcome = Outcome.load(tmp_path / OUTCOME_FILE)
    assert list(outcome.predicted) == [
        "natural",
        *(f"{a}@Linf:0.05" for a in (*SUITES["papers-plus"], "cw-1")),
    ]
    after = ", ".join(f"{format_percent(share)} after {stage}" for stage, share in zip(
        ("apgd-ce", "apgd-t", "fab-t", "square"), outcome.accuracy_by_stage("aa@Linf:0.05"), strict=True
    ))  # fmt: skip
    assert f"aa@Linf:0.05: {after}" in answer.out.replace("\n", "")
    default = ask(*LINF, "--n", "12", "--out", str(tmp_path))
    assert default.code == 0 and "aa@Linf:0.05" in default.out and "pgd-20" not in default.out
    assert "also hold 2 probes of earlier calls" in flat(default.out)
    assert Outcome.load(tmp_path / OUTCOME_FILE).predicted.keys() == outcome.predicted.keys()
    assert "pgd-20@Linf:0.05" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--suite", "paper-plus"), "unknown suite 'paper-plus' .* did you mean \"papers-plus\""),
        (("--attack", "pdg-20"), "unknown attack 'pdg-20' .* did you mean \"pgd\""),
        (("--threat", "Linf"), "threat 'Linf': expected one text NORM:BUDGET"),
        (("--threat", "L3:1"), "unknown norm 'L3'"),
        (("--budget", "fast"), "--budget: fast: expected one of smoke, quick, standard, full"),
        (("--budget", "quik"), 'did you mean "quick"'),
        (
            ("--style", "markdwn"),
            '--style: markdwn: expected one of markdown, latex, .* did you mean "markdown"',
        ),
        (("--n", "0"), "--n"),
        (("--workers", "0"), "--workers"),
        (("--batch-size", "x"), "--batch-size"),
        (("--save-examples",), "there is no folder to save in; give --out"),
        (("--steps", "3"), "No such option"),
    ],
)
def test_mistakes_of_usage_are_found_before_anything_is_done(ask: Ask, words: tuple[str, ...], message: str):
    answer = ask(*LINF, *PGD, *words)
    assert answer.code == 2 and answer.out == ""
    assert re.search(message, flat(answer.err)), flat(answer.err)


def test_somebodys_network_has_no_threats(ask: Ask):
    answer = ask(*PGD)
    assert answer.code == 2
    assert "no threat is known; give one, such as --threat Linf:8/255" in flat(answer.err)


@pytest.mark.parametrize("style", ["markdown", "latex", "csv", "json"])
def test_tables_have_styles(ask: Ask, style: str, tmp_path: Path):
    out = ("--out", str(tmp_path / "eval"))
    answer = ask(*LINF, *PGD, *out, "--style", style, "--quiet")
    assert answer.code == 0, answer.err
    outcome = Outcome.load(tmp_path / "eval" / OUTCOME_FILE)
    name = "tests.support.networks:tiny weights.safetensors"
    if style != "json":  # its facts come back in another order
        assert answer.out.strip() == outcome.table(style, {"name": name}).strip()
    match style:
        case "csv":
            (row,) = csv.DictReader(io.StringIO(answer.out.strip()))
            assert float(row["pgd-2@Linf:0.05"]) == outcome.accuracy("pgd-2")
        case "json":
            assert json.loads(answer.out) == json.loads(outcome.table(style, {"name": name}))
        case _:
            assert format_percent(outcome.accuracy("pgd-2")) in answer.out
    loud = ask(*LINF, *PGD, *out, "--style", style)
    assert answer.out.strip() in loud.out and "results: " in loud.out and "results: " not in answer.out


def test_the_robustbench_style_requires_its_fields(ask: Ask, tmp_path: Path):
    answer = ask(*LINF, *PGD, "--style", "robustbench", "--out", str(tmp_path))
    assert answer.code == 1 and "Traceback" not in answer.err
    assert "robustbench: got no aa" in flat(answer.err) and "in Python, Outcome.load" in flat(answer.err)
    assert (tmp_path / OUTCOME_FILE).is_file() and (tmp_path / "table.md").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_prints_how_to_resume(ask: Ask, number: signal.Signals, tmp_path: Path):
    out = ("--out", str(tmp_path / "eval"))
    with struck(
        Point("allrounder.evaluation.runner:ResultWriter.write"), lambda: os.kill(os.getpid(), number)
    ):
        stopped = ask(*LINF, *PGD, *out)
    assert stopped.code == 75 and f"{number.name}: stopped, call again to continue" in flat(stopped.err)
    assert lines(tmp_path / "eval") and not (tmp_path / "eval" / OUTCOME_FILE).exists()
    assert ask(*LINF, *PGD, *out).code == 0
    assert ask(*LINF, *PGD, "--out", str(tmp_path / "whole")).code == 0
    assert (tmp_path / "eval" / OUTCOME_FILE).read_bytes() == (tmp_path / "whole" / OUTCOME_FILE).read_bytes()


def test_a_folder_that_is_no_evaluation_is_left_alone(ask: Ask, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("all of it")
    answer = ask(*LINF, *PGD, "--out", str(tmp_path))
    assert answer.code == 1 and "exists and is not an evaluation" in flat(answer.err)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_processes_are_started_where_they_pay(monkeypatch: pytest.MonkeyPatch):
    def cores(number: int) -> None:
        monkeypatch.setattr(run_evaluate.os, "sched_getaffinity", lambda who: set(range(number)))

    pgd, square = (tuple([Probe.parse(f"{name}@Linf:0.1")]) for name in ("pgd-2", "square"))
    cores(8)
    assert run_evaluate.default_processes(trained_network(), pgd, 1000) == 1
    assert [run_evaluate.default_processes(trained_network(), square, n) for n in (3, 31, 32, 1000)] == [
        1,
        1,
        2,
        8,
    ]
    cores(1)
    assert run_evaluate.default_processes(trained_network(), square, 1000) == 1


@pytest.mark.filterwarnings("default")
def test_a_large_budget_is_printed_as_a_note_and_an_impossible_one_is_refused(ask: Ask):
    answer = ask("--threat", "Linf:0.7", *PGD)
    assert answer.code == 0 and "Warning" not in answer.err
    note = "note: Linf:0.7: expected a budget of at most 0.5, because images of shape (1, 8, 8) in [0, 1]"
    assert note in flat(answer.out)
    refused = ask("--threat", "Linf:8", *PGD)
    assert refused.code == 2 and "did you mean Linf:8/255?" in flat(refused.err)


def test_tables_of_classes_follow_the_numbers(ask: Ask):
    found = ask(*LINF, *PGD, "--table", "classes,worst", "--table", "confusion")
    assert found.code == 0, found.err
    titles = (
        *("95% interval", "Percent of the images of a class", "Percent of the images of the class"),
        *("natural: number of images of every class", "pgd-2@Linf:0.05: number of images of every class"),
    )
    positions = [found.out.index(title) for title in titles]
    assert positions == sorted(positions)


def test_tables_of_classes_have_the_style_of_the_numbers(ask: Ask):
    found = ask(*LINF, *PGD, "--table", "worst", "--style", "markdown")
    assert found.code == 0, found.err
    assert found.out.count("\n| ") >= 6 and "| column | worst class | accuracy | taken for |" in found.out
    latex = ask(*LINF, *PGD, "--table", "classes", "--style", "latex")
    assert latex.out.count(r"\begin{tabular}") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "clases"), "clases: expected one of classes, confusion, worst; did you mean"),
        (("--table", "classes,"), "expected one of classes, confusion, worst"),
        (("--table", "worst", "--style", "csv"), "csv: expected one of markdown, latex"),
    ],
)
def test_a_wrong_table_of_classes_is_explained(ask: Ask, options: tuple[str, ...], message: str):
    found = ask(*LINF, *PGD, *options)
    assert found.code == 2 and message in flat(found.err)
