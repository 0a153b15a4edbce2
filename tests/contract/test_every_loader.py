"""Every loader of the package against every kind of damage: it reads the input, or raises an error of ours.

Each format runs in a process of its own, with a limit of time and of memory.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest

import allrounder
from allrounder.errors import AllrounderError
from allrounder.system.checked_files import write_json
from tests.support.refusals import answer
from tests.support.user_files import FORMATS, make_study

PACKAGE = Path(allrounder.__file__).parent
Rng = np.random.Generator
Damage = Callable[[Path, Rng], object]
READING_CALLS = {
    *(
        "json.loads",
        "tomllib.loads",
        "np.load",
        "torch.load",
        "load_file",
        "load_safetensors",
        "safe_open",
        "loadmat",
    ),
    *(
        "np.frombuffer",
        "np.fromfile",
        "torch.frombuffer",
        "pickletools.genops",
        "pickle.load",
        "pickle.loads",
    ),
    *("zipfile.ZipFile", "tarfile.TarFile", "tarfile.open", "gzip.open", "Image.open"),
}
READING_METHODS = {"read_bytes", "read_text", "read_limited", "open_npy"}
OWN = "reads what this package or the system wrote, never a file of a user"
PART = "is called by other readers of this table"
READERS: dict[str, tuple[str, ...] | str] = {
    "cli/index.py:read_index": OWN,
    "cli/index.py:read_schema": OWN,
    "cli/run_watch.py:make_routes": OWN,
    "config/toml.py:load_toml": ("recipe", "study"),
    "config/toml.py:read_toml": ("recipe", "study"),
    "data/corruptions/datasets.py:_open_array": ("corrupted images", "corrupted images: labels"),
    "data/corruptions/digital.py:jpeg_compression.compress": OWN,
    "data/corruptions/generate.py:read_marker": ("corrupted images: mark",),
    "data/datasets/cifar.py:_parse_binary": (
        "CIFAR-10 binary archive",
        "CIFAR-10 binary file",
        "CIFAR-100 binary file",
    ),
    "data/datasets/cifar.py:_read_file": ("CIFAR-10 binary file", "CIFAR-10 pickled file"),
    "data/datasets/embedded.py:read_embedded": OWN,
    "data/datasets/mnist.py:read_idx": ("idx", "idx.gz"),
    "data/datasets/npz.py:read_arrays": ("npz", "npz by name", "npz of extra images"),
    "data/files/archives.py:_tar_members": ("tar", "tar.gz", "tar.bz2", "tar.xz"),
    "data/files/archives.py:_zip_members": ("zip",),
    "data/files/integrity.py:array_problems": ("corrupted images, checked",),
    "data/files/mat.py:_parse_matrix": ("mat",),
    "data/files/npy.py:open_npy": ("corrupted images", "corrupted images, checked"),
    "data/files/safe_pickle.py:_array": ("CIFAR-10 pickled file", "CIFAR-100 pickled file"),
    "data/files/safe_pickle.py:read_plain_dict": ("CIFAR-10 pickled archive", "CIFAR-10 pickled names"),
    "data/streaming/decode.py:open_image": ("png", "jpeg", "gif", "bmp", "ppm", "tiff", "webp"),
    "data/streaming/decode.py:serve": OWN,
    "data/streaming/decoder_pool.py:_DecoderProcess.request": OWN,
    "data/streaming/file_index.py:read_lines": (
        "list of images",
        "class names",
        "annotations",
        "list of classes",
    ),
    "data/streaming/split.py:LazySplit.fetch_views": OWN,
    "distributed/coordinator.py:Coordinator._is_dead": OWN,
    "distributed/coordinator.py:Coordinator.all_gather_object": OWN,
    "distributed/coordinator.py:Coordinator.name": OWN,
    "distributed/coordinator.py:Coordinator.recv_notes": OWN,
    "distributed/coordinator.py:_pid_namespace": OWN,
    "distributed/launch.py:_user_set_threads": OWN,
    "distributed/world.py:World.send_state": OWN,
    "evaluation/store.py:open_folder": OWN,
    "experiments/machine_paths.py:_read_values": "reads files of a study whose digests were checked before",
    "experiments/publish.py:_copy_files": "copies files of a study whose digests were checked before",
    "experiments/result_pages.py:read_page": "reads a page of this repository, which it writes again",
    "inference/winograd_onednn.py:is_onednn_faster": OWN,
    "models/external.py:_check_fits_memory": ("torch.save",),
    "models/external.py:_read_safetensors": ("safetensors",),
    "models/external.py:_read_torch": ("torch.save", "torch.save, legacy"),
    "recipe/recipe.py:Recipe.load": OWN,
    "recipe/template.py:recipe_template": OWN,
    "report/page/page.py:_read": OWN,
    "system/checked_files.py:_parse_object": PART,
    "system/checked_files.py:read_arrays": (
        "run: outcome",
        "evaluation: results",
        "evaluation: outcome",
        "study: outcome",
        "publication: outcome",
    ),
    "system/checked_files.py:read_json": (
        "run: format",
        "run: sessions",
        "run: manifest",
        "run: mixtures",
        "checkpoint: manifest",
        "evaluation: plan",
        "study: manifest",
        "study: signature",
        "publication: list",
        "publication: manifest",
    ),
    "system/checked_files.py:read_toml_text": ("run: recipe", "publication: study"),
    "system/checked_files.py:write_arrays": OWN,
    "system/memory.py:_resident_bytes": OWN,
    "system/memory.py:total_memory": OWN,
    "system/tensor_folders.py:read_tensors": ("run: weights", "checkpoint: learner"),
    "training/record.py:read_metrics_bytes": ("run: log",),
}
"""Every function that parses a file: the formats of the tests that reach it, or why it needs none."""


def find_readers() -> Iterator[str]:
    """Every function of the package that calls what parses bytes or opens a file to read it whole."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        parents: dict[ast.AST, ast.AST] = {c: n for n in ast.walk(tree) for c in ast.iter_child_nodes(n)}
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            text = ast.unparse(call.func)
            if text not in READING_CALLS and text.rpartition(".")[2] not in READING_METHODS:
                continue
            names: list[str] = []
            node: ast.AST | None = call
            while (node := parents.get(node)) is not None:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names.insert(0, node.name)
            yield f"{file.relative_to(PACKAGE).as_posix()}:{'.'.join(names)}"


def test_every_loader_is_in_the_table():
    assert sorted(set(find_readers())) == sorted(READERS), "add the new reader, and its format to FORMATS"


def test_the_table_reaches_every_format_and_no_other():
    named = [name for names in READERS.values() if isinstance(names, tuple) for name in names]
    assert sorted(set(named)) == sorted(FORMATS)


def change(edit: Callable[[bytearray, Rng], object]) -> Damage:
    """Edit the content of a file."""

    def apply(file: Path, rng: Rng) -> None:
        content = bytearray(file.read_bytes())
        edit(content, rng)
        file.write_bytes(content)

    return apply


def flip(content: bytearray, rng: Rng) -> None:
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))


def cut(content: bytearray, rng: Rng) -> None:
    del content[int(rng.integers(len(content))) :]


def insert(content: bytearray, rng: Rng) -> None:
    place = int(rng.integers(len(content)))
    content[place:place] = rng.bytes(int(rng.integers(1, 40)))


def remove(content: bytearray, rng: Rng) -> None:
    place = int(rng.integers(len(content)))
    del content[place : place + int(rng.integers(1, 40))]


def raise_number(content: bytearray, rng: Rng) -> None:
    """Write the largest number over four bytes of the first hundred, where headers have sizes."""
    place = int(rng.integers(min(len(content), 100)))
    content[place : place + 4] = b"\xff\xff\xff\x7f"[: len(content) - place]


def replace_by(kind: Callable[[Path], object]) -> Damage:
    """Put something else in the place of a file."""

    def apply(file: Path, rng: Rng) -> None:
        file.unlink()
        kind(file)

    return apply


def make_sparse(file: Path, rng: Rng) -> None:
    """Lengthen a file to 4 GiB of zeros, which take no space on the disk."""
    with file.open("r+b") as opened:
        opened.truncate(2**32)


DAMAGES: dict[str, tuple[int, Damage]] = {
    "flipped bit": (6, change(flip)),
    "cut": (3, change(cut)),
    "inserted bytes": (2, change(insert)),
    "removed bytes": (2, change(remove)),
    "large number": (4, change(raise_number)),
    "empty": (1, replace_by(lambda file: file.write_bytes(b""))),
    "zeros": (1, replace_by(lambda file: file.write_bytes(bytes(3000)))),
    "noise": (2, lambda file, rng: file.write_bytes(rng.bytes(300))),
    "a pickle": (1, replace_by(lambda file: file.write_bytes(b"\x80\x04}."))),
    "a zip": (1, replace_by(lambda file: file.write_bytes(b"PK\x05\x06" + bytes(18)))),
    "a web page": (1, replace_by(lambda file: file.write_text("<!DOCTYPE html><p>404"))),
    "a folder": (1, replace_by(lambda file: file.mkdir())),
    "a pipe": (1, replace_by(lambda file: os.mkfifo(file))),
    "a link to nowhere": (1, replace_by(lambda file: file.symlink_to("nowhere"))),
    "no file": (1, replace_by(lambda file: None)),
    "gigabytes": (1, make_sparse),
}
"""How often each kind of damage is tried, and what it does to a file."""
FIRST = ("flipped bit", "cut", "large number", "noise", "a pipe")
"""The kinds that the default tests try on every format, once each; the slow tests try all."""
FOUND = ("flipped bit", "empty", "zeros", "noise", "a pickle", "a zip", "a web page")
"""Damage that is always found in a checked file. A file that is not there may be optional, and after others
it may be intact: its last newline is cut, or a number is the same."""
HASHED = ("run: weights", "checkpoint: learner", "publication: manifest", "publication: study")
"""Files that are hashed as a whole before anything else: gigabytes take seconds, but no memory."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("study"))


def attempt(name: str, folder: Path) -> str:
    """Read an input; return "read", "refused", or the error, which is not ours."""
    try:
        FORMATS[name].read(folder)
    except AllrounderError as error:
        return "refused" if len(str(error)) < 10_000 else "refused with an endless message"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def damage_all(name: str, study: Path, folder: Path, kinds: Iterable[str], most: int) -> list[str]:
    """Try kinds of damage on one format, each at most `most` times; return what is wrong."""
    os.chdir(study.parent)
    jaxtyping.config.update("jaxtyping_disable", True)
    rng = np.random.default_rng(0)
    problems: list[str] = []
    for kind in ("nothing", *kinds):
        times, damage = DAMAGES.get(kind, (1, lambda file, rng: None))
        for number in range(min(times, most)):
            place = folder / f"{kind}-{number}"
            place.mkdir()
            file = FORMATS[name].write(place, study)
            damage(file, rng)
            got = attempt(name, place)
            allowed = ["read"] if kind == "nothing" else ["refused"]
            if kind != "nothing" and not (FORMATS[name].is_checked and kind in FOUND):
                allowed.append("read")
            if got not in allowed:
                problems.append(f"{kind} {number}: {got}")
            shutil.rmtree(place)
    return problems


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_survives_the_first_kinds_of_damage(name: str, study: Path, tmp_path: Path):
    assert answer(lambda: "\n".join(damage_all(name, study, tmp_path, FIRST, 1))) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_survives_every_damage(name: str, kind: str, study: Path, tmp_path: Path):
    if kind == "gigabytes" and name in HASHED:
        pytest.skip("hashing takes seconds")
    assert answer(lambda: "\n".join(damage_all(name, study, tmp_path, [kind], 9))) == ""


OTHER_VALUES: tuple[Any, ...] = (None, -1, 10**30, "../x", [None], {"a": None}, float("nan"))


def forge(fields: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every place of nested fields, with another value for it."""
    items: Any = fields.items() if isinstance(fields, dict) else enumerate(fields[:1])
    for key, value in items:
        for other in OTHER_VALUES:
            yield (*path, key), other
        if isinstance(value, dict | list):
            yield from forge(value, (*path, key))


def forge_all(name: str, study: Path, folder: Path, step: int) -> list[str]:
    """Replace every `step`-th value of a JSON file, each time with the right digest; return what is wrong."""
    os.chdir(study.parent)
    jaxtyping.config.update("jaxtyping_disable", True)
    problems: list[str] = []
    for number, (path, other) in enumerate(forge(read_fields(name, folder / "original", study))):
        if number % step:
            continue
        place = folder / str(number)
        place.mkdir()
        file = FORMATS[name].write(place, study)
        fields = json.loads(file.read_text())
        del fields["digest"]
        inner = fields
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = other
        write_json(file, fields)
        got = attempt(name, place)
        if got not in ("read", "refused"):
            problems.append(f"{path} = {other!r}: {got}")
        shutil.rmtree(place)
    return problems


def read_fields(name: str, folder: Path, study: Path) -> Any:
    folder.mkdir()
    fields = json.loads(FORMATS[name].write(folder, study).read_text())
    return {key: value for key, value in fields.items() if key != "digest"}


JSON = [name for name, entry in FORMATS.items() if entry.is_json]


@pytest.mark.parametrize("name", JSON)
def test_fields_of_another_type_are_refused_in_spite_of_a_right_digest(
    name: str, study: Path, tmp_path: Path
):
    assert answer(lambda: "\n".join(forge_all(name, study, tmp_path, step=29))) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", JSON)
def test_all_fields_of_another_type_are_refused(name: str, study: Path, tmp_path: Path):
    assert forge_all(name, study, tmp_path, step=1) == []
