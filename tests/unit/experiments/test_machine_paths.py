"""Absolute paths are found in every kind of file that is published, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from allrounder.errors import RunError
from allrounder.experiments.machine_paths import ABSOLUTE_PATH, check_no_machine_paths
from allrounder.experiments.publish import publish_study
from allrounder.report.outcome import Outcome
from tests.support.studies import run_here, tiny_study


@pytest.mark.parametrize(
    "text",
    [
        "/data",
        "/srv/data/x.npz",
        "~/data",
        "data.path=/srv/x",
        "data.path='/srv/x'",
        "Extra(path='/srv/x', share=0.5)",
        "read from: /srv/x",
        "C:\\data\\x",
        "d:/data",
        "file:///srv/x",
        r"\\server\share",
        "a;/srv/x",
        "see `/srv/x`",
        "read from: /data",
        "read from /srv/x",
        "of ~me/x",
    ],
)
def test_absolute_paths_are_found(text: str):
    assert ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "Linf:8/255",
        "8/255",
        "132/132",
        "T-shirt/top",
        "data/x.npz",
        "./data",
        "../data",
        "natural / robust",
        "PGD /AT",
        "1 /2",
        "~8/255",
        "weights/best-00000003/global.safetensors",
        "https://example.org/a/b",
        "aa@Linf:0.1: apgd-ce: 100 steps",
        "mix.exchange.every='5%'",
    ],
)
def test_nothing_else_is_taken_for_a_path(text: str):
    assert ABSOLUTE_PATH.search(text) is None


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("recipe.toml", '[data]\npath = "/srv/x.npz"\n', r"data\.path holds /srv/x\.npz, an absolute path"),
        ("study.toml", 'sets = ["epochs=1", "data.path=/srv/x"]\n', "sets holds /srv/x, "),
        ("study.toml", '[[row]]\nrecipe = "~/mine.toml"\n', r"row\.recipe holds ~/mine\.toml, "),
        ("env.json", '{"sessions": [{"folder": "/srv"}]}', r"sessions\.folder holds /srv, "),
        ("README.md", "# A\n\n| data | npz (path /srv/x.npz) |\n", r"line 3 holds /srv/x\.npz\), "),
        ("env.json", '{"/srv": 1}', "/srv holds /srv, "),
        ("metrics.jsonl", '{"a": 1}\n{"source": "/srv/x"}\n', r"line 2\.source holds /srv/x, "),
    ],
)
def test_the_error_names_the_file_and_the_entry(name: str, text: str, place: str, tmp_path: Path):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=rf"{name}: {place}.*; train with a path that is relative"):
        check_no_machine_paths(file)


def test_the_facts_of_an_outcome_are_searched(tmp_path: Path):
    label = np.zeros(3, np.int64)
    facts = {"attacks": {"pgd@Linf:8/255": "Pgd(step=2/255)"}, "classes": 3}
    Outcome(label, {"natural": label}, facts).save(tmp_path / "outcome.safetensors")
    check_no_machine_paths(tmp_path / "outcome.safetensors")
    facts = {**facts, "extra": "Extra(path='/srv/x')"}
    Outcome(label, {"natural": label}, facts).save(tmp_path / "outcome.safetensors")
    with pytest.raises(RunError, match="extra holds /srv/x, an absolute path"):
        check_no_machine_paths(tmp_path / "outcome.safetensors")


def test_a_study_with_absolute_paths_is_not_published(tmp_path: Path):
    study = tiny_study(tmp_path)
    run_here(study, tmp_path / "out")
    with pytest.raises(RunError, match=r"recipe\.toml: data\.path holds .*data\.npz, an absolute path"):
        publish_study(tmp_path / "out", tmp_path / "results")
    assert not (tmp_path / "results").exists()
