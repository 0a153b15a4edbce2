"""Texts are replaced atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from allrounder.system.files import write_text
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
