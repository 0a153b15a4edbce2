"""The versions that the project declares agree with those that are installed to test it."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.paths import PROJECT

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_PINNED = {"foolbox", "pyautoattack"}
"""Extras that `make setup` does not install."""


def read_pins(name: str) -> dict[str, Version]:
    """The versions of a file of constraints."""
    lines = (PROJECT / name).read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if len(line) != 2] == [], f"{name}: every line is NAME==VERSION"
    names = [canonicalize_name(library) for library, _ in pins]
    assert len(names) == len(set(names)), f"{name}: a library has two lines"
    return {library: Version(version) for library, (_, version) in zip(names, pins, strict=True)}


def read_floors() -> dict[str, Version]:
    """The lowest version of every requirement of pyproject.toml; each has the form NAME>=VERSION."""
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    floors: dict[str, Version] = {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == "allrounder":
            continue
        (bound,) = requirement.specifier
        assert bound.operator == ">=", f"{line}: expected NAME>=VERSION"
        name, floor = canonicalize_name(requirement.name), Version(bound.version)
        assert floors.setdefault(name, floor) == floor, f"{name} has two floors"
    return floors


def test_the_tested_floors_are_the_declared_ones():
    assert read_pins("constraints-floor.txt") == read_floors()


def test_the_pinned_versions_are_allowed():
    pins, floors = read_pins("constraints.txt"), read_floors()
    assert floors.keys() - pins.keys() == NOT_PINNED
    assert {name: str(pins[name]) for name in floors.keys() & pins.keys() if pins[name] < floors[name]} == {}


def test_python_versions_agree():
    """The lowest Python is the first one that is listed as tested, and the one that types are checked for."""
    project = PYPROJECT["project"]
    listed = [
        Version(line.rsplit(" ", 1)[1]) for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)
    ]
    lowest = project["requires-python"].removeprefix(">=")
    assert Version(lowest) == min(listed) == Version(PYPROJECT["tool"]["basedpyright"]["pythonVersion"])


def test_the_changelog_begins_with_the_changes_to_come_and_this_version():
    text = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[0] == "Unreleased" and sections[1].split()[0] == PYPROJECT["project"]["version"]
    for section in text.split("\n## ")[2:]:
        assert "\n### Numerics\n" in section, f"{section.splitlines()[0]}: say whether results change"
