"""A pickle that would create a file is planted in every format that a user may load: it never runs."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

from allrounder.errors import AllrounderError
from tests.support.user_files import FORMATS, make_study


class Payload:
    """Its pickle calls a function that creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def plain(payload: Payload, content: bytes) -> bytes:
    return pickle.dumps(payload, protocol=2)


def torch_zip(payload: Payload, content: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.ones(2, 2)}, "more": payload}, buffer)
    return buffer.getvalue()


def torch_legacy(payload: Payload, content: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": payload}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def npy(payload: Payload, content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([payload], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npz(payload: Payload, content: bytes) -> bytes:
    buffer = io.BytesIO()
    arrays = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.array([payload], dtype=object))
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def cifar(payload: Payload, content: bytes) -> bytes:
    return pickle.dumps({"data": payload, "labels": [0], "label_names": payload}, protocol=2)


def appended(payload: Payload, content: bytes) -> bytes:
    return content + pickle.dumps(payload)


PAYLOADS: dict[str, Callable[[Payload, bytes], bytes]] = {
    function.__name__: function for function in (plain, torch_zip, torch_legacy, npy, npz, cifar, appended)
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("study"))


def test_the_payload_works(tmp_path: Path):
    pickle.loads(plain(Payload(tmp_path / "mark"), b""))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_no_payload_runs(name: str, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(study.parent)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    mark = tmp_path / "mark"
    for kind, plant in PAYLOADS.items():
        folder = tmp_path / kind
        folder.mkdir()
        file = FORMATS[name].write(folder, study)
        file.write_bytes(plant(Payload(mark), file.read_bytes()))
        try:
            FORMATS[name].read(folder)
            is_refused = False
        except AllrounderError:
            is_refused = True
        assert not mark.exists(), kind
        # Bytes after an image, or damaged results that are computed again, need no error.
        assert is_refused or kind == "appended" or name == "evaluation: results", kind


OUTSIDE = ("../../mark", "/mark", "top/../../mark")


@pytest.mark.parametrize("member", [*OUTSIDE, "link", "hard link"])
@pytest.mark.parametrize("name", ["tar", "zip", "CIFAR-10 binary archive"])
def test_no_member_leaves_the_folder(name: str, member: str, tmp_path: Path, study: Path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    file = FORMATS[name].write(folder, study)
    if name == "zip":
        if member == "hard link":
            return  # a zip has none
        info = zipfile.ZipInfo("top/link" if member == "link" else member)
        info.external_attr = (0o120777 if member == "link" else 0o100644) << 16
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(info, str(tmp_path / "mark"))
    else:
        entry = tarfile.TarInfo("top/link" if "link" in member else member)
        kinds = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
        entry.type, entry.linkname = kinds.get(member, tarfile.REGTYPE), str(tmp_path / "mark")
        with tarfile.open(file, "w") as archive:
            archive.addfile(entry, io.BytesIO())
    before = sorted(os.walk(tmp_path))
    with pytest.raises(AllrounderError, match=r"leads out of the folder|is a link, a device"):
        FORMATS[name].read(folder)
    assert not (tmp_path / "mark").exists() and sorted(path for path in tmp_path.iterdir()) == [
        tmp_path / "a"
    ]
    assert len(sorted(os.walk(tmp_path))) == len(before)
