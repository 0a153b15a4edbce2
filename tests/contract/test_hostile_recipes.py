"""Recipes, overrides, threats, times, probes and studies that would take hours or gigabytes to read are
refused with one clear error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allrounder.config.time import Time
from allrounder.evaluation.probes import Probe
from allrounder.experiments.manifest import MANIFEST_FILE, Manifest
from allrounder.experiments.study import Study
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat
from tests.support.refusals import refusal
from tests.support.trainings import SOLO

BASE = "embedded/at-linf"
MANY_DIGITS = "9" * 5000
HUGE_HEX = "0x" + "F" * 100_000


def short_name(raw: object) -> str:
    """A short name for a case, whose text may have a million characters."""
    return str(raw)[:20] if isinstance(raw, str) else type(raw).__name__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Linf:1e-9999999999", "too large or has too many digits"),
        ("Linf:1e9999999999", "too large or has too many digits"),
        ("Linf:1/1e-9999999999", "too large or has too many digits"),
        ("Linf:" + "9" * 10**6, "more characters"),
        ("L1(1e-9999999999):8/255", "too large or has too many digits"),
        ("x" * 10**6 + ":8/255", "unknown norm"),
    ],
    ids=short_name,
)
def test_a_hostile_threat_is_refused(text: str, message: str):
    assert message in refusal(lambda: Threat.parse(text))


@pytest.mark.parametrize(
    "raw",
    ["1e9999999999%", "1e9999999999", "1e-9999999999", 10**5000, float("nan"), "9" * 10**6],
    ids=short_name,
)
def test_a_hostile_time_is_refused(raw: object):
    assert refusal(lambda: Time.parse(raw)).startswith("expected a time")


@pytest.mark.parametrize("time", ['"1e9999999999%"', '"1e-9999999999"', "nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "schedule",
    ["{ kind = 'linear', at = [0, %s], to = [1, 0] }", "{ kind = 'cosine', start = 1, warmup = %s }"],
    ids=short_name,
)
def test_a_schedule_with_a_hostile_time_is_refused(schedule: str, time: str):
    text = f"task.0.lr={schedule % time}"
    assert "expected a time" in refusal(lambda: Recipe.load(BASE, [text]))


@pytest.mark.parametrize(
    "text",
    [f"pgd-{MANY_DIGITS}@Linf:8/255", "x" * 10**6 + "@Linf:8/255", "pgd@Linf:1e-9999999999"],
    ids=short_name,
)
def test_a_hostile_probe_is_refused(text: str):
    refusal(lambda: Probe.parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seed={MANY_DIGITS}", "has a number that cannot be read"),
        (f"seed={HUGE_HEX}", "has a whole number outside"),
        ("a." * 10**5 + "b=1", "keys, expected at most"),
        (f"task.{MANY_DIGITS}.lr=1", "no member"),
        ("task.\u00b2.lr=1", "no member"),
        ("seed=" + "[" * 10**5, "levels deep"),
        ("seed=" + "{a=" * 10**5, "levels deep"),
        ("seed=" + "x" * 10**6, "expected a whole number"),
        ("seed=nan", "expected a whole number"),
        ("epochs=inf", "expected a whole number"),
        ("task.0.lr=nan", "expected"),
        (f"task.0.name={'x' * 10**5}", "expected a text of at most 100 characters"),
        (f"task.0.lr={{kind='step', at={[0] * 2000}, to={[0] * 2000}}}", "got 2,000 times"),
        ("task.0.lr=1e999", "expected"),
        ("x" * 10**6, "expected a.b=value"),
    ],
    ids=short_name,
)
def test_a_hostile_override_is_refused(text: str, message: str):
    assert message in refusal(lambda: Recipe.load(BASE, [text]))


def tasks(count: int) -> str:
    return "\n".join(f"[[task]]\nname='t{i}'" for i in range(count))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seed = {MANY_DIGITS}", "has a number that cannot be read"),
        (f"seed = {HUGE_HEX}", "has a whole number outside"),
        ("a = " + "[" * 10**5, "levels deep"),
        ("a = " + "[" * 100 + "]" * 100, "levels deep"),
        (".".join("a" * 1000) + " = 1", "levels deep"),
        (".".join("a" * 10**5) + " = 1", "has too many dots in a line"),
        ("\n".join(f"k{i} = 1" for i in range(100_000)), "has 1,088,889 characters"),
        ("\n".join(f"k{i} = 1" for i in range(50_000)), "... and 49,984 more mistakes"),
        (tasks(100_000), "characters, expected at most"),
        (tasks(20_000), "more mistakes"),
        (f"[data]\nkind = '{'x' * 10**6}'", "unknown kind"),
        (SOLO.replace("epochs = 3", "epochs = nan"), "epochs: expected a whole number"),
    ],
    ids=short_name,
)
def test_a_hostile_recipe_is_refused(text: str, message: str):
    assert message in refusal(lambda: Recipe.loads(text))


def test_a_recipe_of_a_thousand_learners_is_read_and_one_of_more_is_not(tmp_path: Path):
    file = tmp_path / "many.toml"
    file.write_text("extends = 'embedded/at-linf'\n" + tasks(20_000))
    assert "expected at most 1,000; remove some" in refusal(lambda: Recipe.load(file))


def test_parents_that_are_no_small_files_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    with (tmp_path / "large.toml").open("wb") as large:
        large.truncate(2**40)
    file = tmp_path / "child.toml"
    for parent, message in {
        "/dev/zero": "a folder, a pipe or a device, expected a file",
        "pipe.toml": "a folder, a pipe or a device, expected a file",
        "folder.toml": "a folder, a pipe or a device, expected a file",
        "large.toml": "large.toml: cannot be read: it has more than 1,048,576 bytes",
        "/proc/self/mem": "cannot be read",
        "x" * 10**5: "no such file",
    }.items():
        file.write_text(f"extends = '{parent}'")
        assert message in refusal(lambda: Recipe.load(file))
    assert "cannot be read" in refusal(lambda: Recipe.load(tmp_path / "large.toml"))
    assert "no such file" in refusal(lambda: Recipe.load("x" * 10**5))


def test_a_long_chain_of_parents_is_refused(tmp_path: Path):
    for number in range(2000):
        (tmp_path / f"{number}.toml").write_text(f"extends = '{number + 1}.toml'")
    assert "0.toml: extends more than 31 files" in refusal(lambda: Recipe.load(tmp_path / "0.toml"))
    (tmp_path / "20.toml").write_text("extends = '10.toml'")
    assert "10.toml extends itself" in refusal(lambda: Recipe.load(tmp_path / "0.toml"))


def axes(count: int, points: int) -> str:
    values = ", ".join(f"{{ label = 'p{i}' }}" for i in range(points))
    return f"base = '{BASE}'\n" + "".join(
        f"[[axis]]\nname = 'a{i}'\npoint = [{values}]\n" for i in range(count)
    )


def long_labels() -> str:
    axis = f"point = [{{ label = '{'x' * 78}' }}]\n"
    return f"base = '{BASE}'\n" + "".join(f"[[axis]]\nname = 'a{i}'\n{axis}" for i in range(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (axes(9, 10), "1,000,000,000 rows times 1 seeds are 1,000,000,000 trainings, expected at most 2,000"),
        (axes(1000, 2), "axis: expected a list of at most 20"),
        (f"seeds = {list(range(10**5))}\n" + axes(1, 10), "1,000,000 trainings"),
        (f"seeds = [{MANY_DIGITS}]", "has a number that cannot be read"),
        ("a = " + "[" * 10**5, "levels deep"),
        (f"base = '{BASE}'\n" + "\n".join(f"[[row]]\nlabel = 'r{i}'" for i in range(30_000)), "trainings"),
        (f"base = '{BASE}'\nreference = '{'x' * 10**6}'\n[[row]]\nlabel = 'r'", "is not a row"),
        (f"base = '{BASE}'\n[[row]]\nlabel = 'r'\npaper = {{ natural = nan }}", "expected a finite number"),
        (long_labels(), "a row has a label of 238 characters"),
        (f"base = '{BASE}'\nsets = {['seed=1'] * 2000}\n[[row]]\nlabel = 'r'", "at most 1000"),
        (f"base = '{BASE}'\nprobes = ['pgd@Linf:1e-9999999999']\n[[row]]\nlabel = 'r'", "too many digits"),
    ],
    ids=short_name,
)
def test_a_hostile_study_is_refused(text: str, message: str):
    assert message in refusal(lambda: Study.loads(text))


def test_a_hostile_manifest_is_refused(tmp_path: Path):
    file = tmp_path / MANIFEST_FILE
    for text in (
        "[" * 10**6,
        f'{{"format": {MANY_DIGITS}}}',
        '{"format": 1, "' + "x" * 10**6 + '": 1}',
        "\0",
    ):
        file.write_text(text)
        assert MANIFEST_FILE in refusal(lambda: Manifest.load(tmp_path))
    with file.open("wb") as large:
        large.truncate(2**40)
    assert "more than 67,108,864 bytes" in refusal(lambda: Manifest.load(tmp_path))
