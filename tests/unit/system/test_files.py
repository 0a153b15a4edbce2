"""Texts are replaced atomically, and errors of the system say what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import resource
import threading
from pathlib import Path

import pytest
from safetensors import SafetensorError

from allrounder.errors import RunError, StorageError
from allrounder.system.files import (
    append_line,
    check_location,
    explain_write_errors,
    is_locked,
    lock_folder,
    make_folder,
    write_atomically,
    write_text,
)
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


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path):
    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(errno.EIO, "Input/output error")

    write_text(tmp_path / "a", "old")
    with pytest.raises(StorageError, match=r"a: cannot be written \(Input/output error\); make this place"):
        write_atomically(tmp_path / "a", fail)
    assert contents(tmp_path) == {"a": b"old"}


RUST = "Error while serializing: I/O error: No space left on device (os error 28)"


@pytest.mark.parametrize(
    ("error", "message", "resumable"),
    [
        (OSError(errno.ENOSPC, "No space left"), "the disk is full; free some space and call again", True),
        (OSError(errno.EDQUOT, "Quota"), "the disk is full; free some space", True),
        (SafetensorError(RUST), "the disk is full; free some space", True),
        (SafetensorError("wrong type"), r"cannot be written \(wrong type\)", False),
        (OSError(errno.EROFS, "x"), r"cannot be written \(Read-only file system\)", False),
        (PermissionError(errno.EACCES, "x"), r"cannot be written \(Permission denied\)", False),
        (StorageError("as it is", resumable=True), "as it is", True),
    ],
)
def test_errors_of_the_system_say_what_to_do(error: Exception, message: str, resumable: bool):
    with pytest.raises(StorageError, match=message) as raised, explain_write_errors(Path("run")):
        raise error
    assert raised.value.resumable is resumable
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.resumable) == (str(raised.value), resumable)


def test_a_full_disk_while_a_line_is_appended_is_explained(tmp_path: Path):
    child = os.fork()
    if child == 0:  # the limit stays with the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
        try:
            append_line(tmp_path / "metrics", "0123456789")
        except StorageError as error:
            os._exit(7 if "File too large" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_folders_that_cannot_exist_are_explained(tmp_path: Path):
    (tmp_path / "file").touch()
    for use in (check_location, make_folder):
        with pytest.raises(StorageError, match=r"file/run: cannot be written \(Not a directory\)"):
            use(tmp_path / "file" / "run")
        with pytest.raises(StorageError, match="File name too long"):
            use(tmp_path / ("x" * 300))
    with pytest.raises(StorageError, match=r"'.*run\\udcff' is not UTF-8; rename"):
        check_location(tmp_path / os.fsdecode(b"run\xff"))
    check_location(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_text_with_a_name_that_is_not_utf8_is_refused(tmp_path: Path):
    with pytest.raises(StorageError, match="is not UTF-8; rename that file or folder"):
        write_text(tmp_path / "a", os.fsdecode(b"path \xff"))
    assert contents(tmp_path) == {}


def test_a_folder_is_locked_once(tmp_path: Path):
    with (
        lock_folder(tmp_path, "training"),
        pytest.raises(RunError, match="another process is training here"),
        lock_folder(tmp_path, "training"),
    ):
        pytest.fail("it was locked twice")
    with lock_folder(tmp_path, "training"):
        pass


def test_is_locked_notices_a_lock_and_creates_nothing(tmp_path: Path):
    assert not is_locked(tmp_path) and list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path, "training"):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_look_at_a_lock_does_not_refuse_it(tmp_path: Path):
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as is_locked does for a moment
        release = threading.Timer(0.05, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        release.start()
        with lock_folder(tmp_path, "training"):
            assert is_locked(tmp_path)
        release.join()


def test_an_odd_lock_counts_as_no_lock(tmp_path: Path):
    (tmp_path / ".lock").mkdir()
    assert not is_locked(tmp_path)


def test_a_lock_can_be_waited_for(tmp_path: Path):
    child = os.fork()
    if child == 0:
        for _ in range(50):
            with lock_folder(tmp_path, "writing", wait=True):
                write_text(tmp_path / "a", "child")
        os._exit(0)
    for _ in range(50):
        with lock_folder(tmp_path, "writing", wait=True):
            write_text(tmp_path / "a", "parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
