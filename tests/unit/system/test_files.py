"""Texts are replaced atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from allrounder.system.files import is_locked, lock_folder, write_text
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.trainings import contents


def test_write_text_is_atomic(tmp_path: Path):
    path = tmp_path / "env.json"
    write_text(path, "old")
    with struck(Point("pathlib:Path.replace"), give_up), pytest.raises(Killed):
        write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "new")
    assert contents(tmp_path) == {"env.json": b"new"}


def test_is_locked_notices_a_lock_and_creates_nothing(tmp_path: Path):
    assert not is_locked(tmp_path) and list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path, "training"):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
