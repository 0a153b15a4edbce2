"""The folder of a published study: names and links that lead out of it are refused, and so are changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allrounder.errors import RunError
from allrounder.experiments.collect import read_results
from allrounder.experiments.manifest import MANIFEST_FILE, STUDY_FILE, Manifest
from allrounder.experiments.publish import publish_study
from allrounder.experiments.published import PUBLISHED_FILE, PublishedFiles, is_inner_path
from tests.support.damage import edit_json, flip
from tests.unit.experiments.test_publish import OUTCOME, RUN, change_line, render

OUTSIDE = ["../../victim.txt", "/srv/me/x", "a/../b", "..", ".", "", "a//b", "./a", "a/", "a\\b", "a\0b"]
LINK = "is a symbolic link, expected none in a published study"


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_of_the_folder_are_refused(name: str, tmp_path: Path):
    assert not is_inner_path(name)
    PublishedFiles(tmp_path, {"a": "0", name: "1"}).save()
    with pytest.raises(
        RunError, match=r"got .* under files, expected a relative path .*from version control"
    ):
        PublishedFiles.load(tmp_path)


def test_plain_names_are_allowed():
    assert all(map(is_inner_path, ["study.toml", OUTCOME, "a b/..c", "...", "linf@best"]))


def test_a_file_outside_of_the_folder_is_not_removed(finished, published: Path, tmp_path: Path):
    victim = tmp_path / "victim.txt"
    victim.touch()
    edit_json(published / PUBLISHED_FILE, lambda raw: raw["files"].update({"../../victim.txt": "0"}))
    with pytest.raises(RunError, match=r"victim\.txt' under files, expected"):
        publish_study(finished[1], published)
    assert victim.is_file()


def move_out(path: Path, elsewhere: Path) -> None:
    """Move a file or folder, and leave a link to it."""
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("name", ["fast", RUN, OUTCOME, STUDY_FILE, PUBLISHED_FILE])
def test_nothing_is_written_through_links(name: str, finished, published: Path, tmp_path: Path):
    move_out(published / name, tmp_path / "elsewhere")
    with pytest.raises(RunError, match=rf"{name}: {LINK}; remove the link, or name another --to"):
        publish_study(finished[1], published)
    assert (published / name).is_symlink()


def test_temporary_files_that_are_links_are_refused(finished, published: Path, tmp_path: Path):
    (tmp_path / "victim.txt").write_text("mine", encoding="utf-8")
    (published / RUN / ".recipe.toml.tmp").symlink_to(tmp_path / "victim.txt")
    with pytest.raises(RunError, match=LINK):
        publish_study(finished[1], published)
    assert (tmp_path / "victim.txt").read_text(encoding="utf-8") == "mine"


def test_the_folder_itself_may_be_reached_through_a_link(finished, published: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(published)
    publish_study(finished[1], tmp_path / "link")
    assert render(tmp_path / "link") == render(finished[1])


@pytest.mark.parametrize("name", ["fast", RUN, OUTCOME, STUDY_FILE])
def test_nothing_is_read_through_links(name: str, published: Path, tmp_path: Path):
    move_out(published / name, tmp_path / "elsewhere")
    with pytest.raises(RunError, match=rf"{name}: {LINK}"):
        render(published)


def test_a_file_that_is_not_regular_is_refused(published: Path):
    (published / OUTCOME).unlink()
    os.mkfifo(published / OUTCOME)
    with pytest.raises(RunError, match="is a folder or a device, expected a regular file"):
        render(published)
    (published / OUTCOME).unlink()
    os.mkfifo(published / RUN / "pipe")
    with pytest.raises(RunError, match=r"(outcome|pipe).*: (was published, but|is not listed)"):
        render(published)


@pytest.mark.parametrize("name", ["../../x", "/srv/me/x", "a\\b", ""])
@pytest.mark.parametrize("key", ["folder", "rows"])
def test_manifests_whose_paths_lead_out_of_the_folder_are_refused(key: str, name: str, source: Path):
    value = name if key == "folder" else {"fast": name}
    edit_json(source / MANIFEST_FILE, lambda raw: raw["trials"][1].update({key: value}))
    expected = r"study\.json: trials\.1: got .*, expected a relative path with slashes and without"
    with pytest.raises(RunError, match=expected):
        Manifest.load(source)


@pytest.mark.parametrize("name", [PUBLISHED_FILE, STUDY_FILE])
def test_the_advice_for_files_that_publishing_compares_is_to_remove_the_folder(
    name: str, finished, published: Path
):
    flip(published / name)
    advice = "restore it from a copy, or remove the folder and publish the study again"
    for call in (lambda: render(published), lambda: publish_study(finished[1], published)):
        with pytest.raises(RunError, match=rf"{name}: .*; {advice}"):
            call()


@pytest.mark.parametrize("inner", ["", "eval/best"])
def test_a_run_of_a_published_study_is_compared_when_it_is_read_alone(
    inner: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(published / "fast")
    (tmp_path / "link").symlink_to(published / RUN)
    folders = [published / RUN / inner, Path("seed-0") / inner, tmp_path / "link" / inner]
    for folder in folders:
        (entry,) = read_results(folder).entries
        assert entry.problems == () and len(entry.outcomes) == 1
    if inner:
        flip(published / OUTCOME)
    else:
        change_line(published / RUN / "metrics.jsonl")
    for folder in folders:
        (entry,) = read_results(folder).entries
        assert "it was changed" in entry.problems[0] and not entry.outcomes


def test_a_run_that_is_a_link_in_a_published_study_is_refused(published: Path, tmp_path: Path):
    move_out(published / RUN, tmp_path / "elsewhere")
    (entry,) = read_results(published / RUN).entries
    assert LINK in entry.problems[0]
