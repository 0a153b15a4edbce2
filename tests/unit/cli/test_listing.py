"""`allrounder list`: a short overview, and lists by title, folder, words and method."""

from __future__ import annotations

import pytest

from allrounder.cli.index import build_index, list_folders, list_methods, read_index
from allrounder.cli.listing import select
from allrounder.recipe.recipe import Recipe, shipped_recipes
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture


def names(text: str) -> list[str]:
    """The names that a list prints, without titles and headers."""
    rows = [row for row in text.splitlines() if row.startswith("  ") and row[2] != " "]
    return [row.split()[0] for row in rows if row.split()[:2] != ["name", "norms"]]


def test_the_overview_names_every_list_on_one_screen(allrounder: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    answer = allrounder("list")
    assert answer.code == 0
    rows = answer.out.splitlines()
    assert len(rows) <= 44 and max(map(len, rows)) <= 80
    for title, lines in read_index()["lists"].items():
        assert f"{title} ({len(lines)})" in rows
    embedded = [name for name in shipped_recipes() if name.startswith("embedded/")]
    assert f"embedded ({len(embedded)})" in flat(answer.out) and "early-stop-pgd" in answer.out
    assert "allrounder list --method trades" in answer.out
    assert allrounder("list", "--quiet").out == answer.out.partition("\n\n")[0] + "\n"


def test_every_entry_of_every_table_is_listed_with_a_line(allrounder: Command):
    for title, table in build_index()["lists"].items():
        answer = allrounder("list", title)
        assert answer.code == 0
        assert answer.out.splitlines()[0] == f"{title} ({len(table)})"
        assert names(answer.out) == list(table)
        assert all(flat(line) in flat(answer.out) for line in table.values()) or title == "recipes"


def test_objectives_are_listed_with_reference_norms_and_passes(allrounder: Command):
    listed = flat(allrounder("list", "objectives").out)
    assert "(Madry et al., 2018; Linf L2 L1; 11/11 forward/backward passes)" in listed


@pytest.mark.parametrize("width", ["80", "120"])
def test_recipes_are_listed_with_method_norms_and_passes(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch, width: str
):
    monkeypatch.setenv("COLUMNS", width)
    answer = allrounder("list", "recipes")
    assert names(answer.out) == list(shipped_recipes())
    assert max(map(len, answer.out.splitlines())) <= int(width)
    text = flat(answer.out)
    for name in ("embedded/generalist-t", "cifar10/nt", "cifar10/msd-official"):
        recipe = Recipe.load(name)
        norms = " ".join(dict.fromkeys(threat.norm.name for threat in recipe.selection_threats))
        assert flat(f"{name} {norms} {recipe.passes()}") in text and recipe.about in text


def test_a_folder_lists_its_recipes_and_studies(allrounder: Command):
    listed = names(allrounder("list", "cifar10").out)
    lists = read_index()["lists"]
    expected = [name for title in ("recipes", "studies") for name in lists[title]]
    assert listed == [name for name in expected if name.startswith("cifar10/")]
    assert allrounder("list", "cifar10/").out == allrounder("list", "cifar10").out


def test_words_narrow_the_lists(allrounder: Command):
    listed = names(allrounder("list", "Generalist", "wrn", "recipes").out)
    assert "cifar10/generalist-t-wrn" in listed and len(listed) > 5
    assert all("generalist" in name and "wrn" in name for name in listed)


def test_a_word_in_no_name_selects_descriptions():
    selected = select(read_index()["lists"], "Friendly")
    assert "fat" in selected["objectives"] and "recipes" not in selected


def test_a_method_selects_recipes_that_use_it(allrounder: Command):
    listed = names(allrounder("list", "--method", "trades", "embedded").out)
    assert listed == ["embedded/generalist-nt-trades", "embedded/trades-1", "embedded/trades-6"]
    for method, name in (
        ("generalist", "embedded/generalist-t"),
        ("awp", "embedded/awp-at"),
        ("msd", "embedded/msd-linf-l2"),
        ("soup", "embedded/soup"),
    ):
        assert name in names(allrounder("list", "--method", method).out)
    assert {"natural", "adversarial", "worst-of"} <= set(list_methods())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense-word",), "nonsense-word: nothing has this name or mentions it"),
        (("embeded",), 'did you mean "embedded"?'),
        (("--method", "trads"), 'did you mean "trades"?'),
        (("--method", "trades", "imagenet"), "among the recipes with the method trades"),
    ],
)
def test_a_filter_that_matches_nothing_is_a_mistake_of_usage(
    allrounder: Command, words: tuple[str, ...], message: str
):
    answer = allrounder("list", *words)
    assert answer.code == 2
    assert message in flat(answer.err)


def test_folders_are_those_of_recipes_and_studies():
    assert list_folders() == [
        *("cifar10", "cifar100", "embedded", "evidence", "imagenet", "mnist", "small", "svhn")
    ]
