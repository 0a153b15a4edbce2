"""Properties of everything that a user can hand in: it is read as a valid value, or refused with an error of
ours that says something. No other error, no endless work, and memory of the order of the input.

All examples of one kind run in a process of their own, with a limit of memory, and each has a limit of time.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, final

import jaxtyping
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from allrounder.config.text import shorten
from allrounder.config.time import Time
from allrounder.errors import AllrounderError, RunError
from allrounder.evaluation.probes import Probe
from allrounder.experiments.study import Study
from allrounder.recipe.recipe import Recipe
from allrounder.system.checked_files import write_json
from allrounder.threats.threat import Threat
from tests.support import any_archives, any_bytes, any_text
from tests.support.any_text import JSON_VALUES, altered
from tests.support.damage import edit_json
from tests.support.refusals import answer
from tests.support.user_files import FORMATS, make_study, read_folder

SECONDS = 5
"""Processor time for one example; most take a few milliseconds."""
MEMORY = 2**28
"""Bytes that reading an example of at most 100 KB may take beyond what the process has."""


class TooSlow(BaseException):
    """An example took too long; no reader catches it."""


def stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"more than {SECONDS} s")


def read_or_refuse(read: Callable[[], object]) -> None:
    """Read an input within the limit of time; an error of ours with a message is fine, any other is not."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        read()
    except AllrounderError as error:
        assert str(error).strip() and len(str(error)) < 10_000
        reason: BaseException | None = error
        while reason is not None:
            assert not isinstance(reason, MemoryError), "the memory was full"
            reason = reason.__context__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_recipe(text: str) -> None:
    recipe = Recipe.loads(text)
    assert Recipe.loads(recipe.dumps()) == recipe


def read_override(text: str) -> None:
    recipe = Recipe.load("embedded/generalist-d-nt-linf", [text])
    assert Recipe.loads(recipe.dumps()) == recipe


def read_study(text: str) -> None:
    study = Study.loads(text)
    assert Study.loads(study.dumps()) == study and study.labels()


def read_threat(text: str) -> None:
    threat = Threat.parse(text)
    assert Threat.parse(str(threat)) == threat and 0 <= threat.eps < float("inf")


def read_probe(text: str) -> None:
    probe = Probe.parse(text)
    assert Probe.parse(str(probe)) == probe


def read_time(raw: object) -> None:
    time = Time.parse(raw)
    assert Time.parse(time.to_toml()) == time and time.amount >= 0


@final
@dataclass(frozen=True)
class Text:
    """A kind of input that is a text or another value, not a file."""

    inputs: SearchStrategy[Any]
    read: Callable[[Any], None]


TEXTS: dict[str, Text] = {
    "recipe": Text(any_text.RECIPES, read_recipe),
    "override": Text(any_text.OVERRIDES, read_override),
    "threat": Text(any_text.THREATS, read_threat),
    "probe": Text(any_text.PROBES, read_probe),
    "time": Text(any_text.TIMES, read_time),
    "study": Text(any_text.STUDIES, read_study),
}


def json_fields(whole: bytes) -> SearchStrategy[Any]:
    fields = {key: value for key, value in json.loads(whole).items() if key != "digest"}
    return altered(fields, JSON_VALUES)


ELSEWHERE = {
    "recipe": "the text",
    "study": "the text",
    **dict.fromkeys(("png", "jpeg", "gif", "bmp", "ppm", "tiff", "webp"), "the folder of images"),
    **dict.fromkeys(("tar.gz", "tar.bz2", "tar.xz"), "tar"),
}
"""Formats that another property tries."""
FILES: dict[str, Callable[[bytes], SearchStrategy[Any]]] = {
    **{name: any_bytes.edited for name in FORMATS if name not in ELSEWHERE},
    "npz": lambda whole: any_bytes.npz_files() | any_bytes.edited(whole),
    "npz by name": lambda whole: any_bytes.npz_files(),
    "corrupted images": lambda whole: any_bytes.npy_files() | any_bytes.edited(whole),
    "idx": lambda whole: any_bytes.idx_files(3) | any_bytes.edited(whole),
    "idx.gz": any_bytes.gzipped,
    "CIFAR-10 pickled file": lambda whole: any_bytes.cifar_pickles() | any_bytes.edited(whole),
    "CIFAR-10 pickled names": lambda whole: any_bytes.cifar_pickles() | any_bytes.edited(whole),
    "CIFAR-10 binary archive": any_bytes.gzipped,
    "CIFAR-10 pickled archive": any_bytes.gzipped,
    "mat": lambda whole: any_bytes.mat_files() | any_bytes.edited(whole) | any_bytes.packed_elements(whole),
    "safetensors": lambda whole: (
        any_bytes.safetensors_files(whole) | any_bytes.other_tensors(whole) | any_bytes.edited(whole)
    ),
    "tar": any_archives.archives,
    "zip": any_archives.archives,
    **{name: json_fields for name, entry in FORMATS.items() if entry.is_json},
}
"""What the tests write into the file of each format, given its intact content: bytes, or the fields of a JSON
file, which get the right digest."""
CHANGES_ITS_FOLDER = ("checkpoint", "evaluation")
"""Formats whose reader writes beside the file, so that every example needs a new folder."""
QUICK = (
    *("npz", "corrupted images", "idx", "idx.gz", "mat", "safetensors", "torch.save", "tar"),
    *("CIFAR-10 binary file", "CIFAR-10 pickled file", "CIFAR-10 binary archive", "CIFAR-10 pickled archive"),
    *("run: manifest", "study: manifest", "publication: list"),
)
"""Formats that the default tests try; the readers of the others share most of their code with these."""
FEW, MANY = 20, 300
"""Examples of a file; texts are tried four times as often."""


def try_examples(
    inputs: SearchStrategy[Any],
    read: Callable[[Any], object],
    count: int,
    number: int | None = None,
) -> str:
    """Try examples, with the seed `number` or the usual one; return the traceback of a failure."""
    jaxtyping.config.update("jaxtyping_disable", True)
    signal.signal(signal.SIGPROF, stop)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))

    def check(raw: Any) -> None:
        read_or_refuse(lambda: read(raw))

    options = settings(
        max_examples=count,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        phases=(Phase.generate, Phase.shrink),
        derandomize=number is None,
        database=None,
    )
    test = options(given(inputs)(check))
    try:
        (test if number is None else seed(number)(test))()
    except BaseException as error:
        return shorten("".join(traceback.format_exception(error)), 12_000)  # an example may be long
    return ""


def try_text(name: str, count: int, number: int | None = None) -> str:
    kind = TEXTS[name]
    return try_examples(kind.inputs, kind.read, count, number)


def try_file(name: str, folder: Path, study: Path, count: int, number: int | None = None) -> str:
    """Write an intact file, and then read other contents in its place."""
    os.chdir(study.parent)
    jaxtyping.config.update("jaxtyping_disable", True)
    entry = FORMATS[name]
    (folder / "intact").mkdir()
    file = entry.write(folder / "intact", study)
    whole = file.read_bytes()
    entry.read(folder / "intact")

    def read(raw: Any) -> None:
        place = folder / "intact"
        if name.startswith(CHANGES_ITS_FOLDER):
            shutil.rmtree(folder / "copy", ignore_errors=True)
            place = folder / "copy"
            place.mkdir()
            entry.write(place, study)
        path = place / file.relative_to(folder / "intact")
        path.unlink(missing_ok=True)
        if entry.is_json:
            write_json(path, raw)
        else:
            path.write_bytes(raw)
        entry.read(place)

    return try_examples(FILES[name](whole), read, count, number)


def try_folder(folder: Path, count: int, number: int | None = None) -> str:
    def read(tree: any_archives.Tree) -> None:
        shutil.rmtree(folder / "images", ignore_errors=True)
        any_archives.write_tree(folder / "images", tree)
        read_folder(folder / "images")

    return try_examples(any_archives.image_folders(), read, count, number)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Let hypothesis load its tables of characters, which takes a while, before processes are copied."""

    def nothing(raw: Any) -> None: ...

    settings(max_examples=5)(given(any_text.STUDIES)(nothing))()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_read_or_refused(name: str):
    problem = answer(lambda: try_text(name, 4 * FEW))
    assert not problem, problem


@pytest.mark.parametrize("name", QUICK)
def test_any_file_is_read_or_refused(name: str, study: Path, tmp_path: Path):
    problem = answer(lambda: try_file(name, tmp_path, study, FEW))
    assert not problem, problem


def test_any_folder_of_images_is_read_or_refused(tmp_path: Path):
    problem = answer(lambda: try_folder(tmp_path, FEW))
    assert not problem, problem


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", [*TEXTS, *FILES, "folder of images"])
def test_many_inputs_are_read_or_refused(name: str, number: int, study: Path, tmp_path: Path):
    if name in TEXTS:
        problem = answer(lambda: try_text(name, 4 * MANY, number), seconds=300)
    elif name in FILES:
        problem = answer(lambda: try_file(name, tmp_path, study, MANY, number), seconds=300)
    else:
        problem = answer(lambda: try_folder(tmp_path, MANY, number), seconds=300)
    assert not problem, problem


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(
            ("checkpoint: manifest", field)
            for field in ["t", "metrics_bytes", "sums", "images", "data_digests"]
        ),
        *(("run: manifest", field) for field in ["t", "fingerprint", "shape", "classes", "files"]),
    ],
)
def test_a_manifest_without_a_field_is_refused(name: str, field: str, study: Path, tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study.parent)
        file = FORMATS[name].write(tmp_path, study)
        edit_json(file, lambda fields: fields.pop(field))
        with pytest.raises(RunError, match=f"{field}: got nothing, expected "):
            FORMATS[name].read(tmp_path)


def test_a_checkpoint_without_the_sums_of_a_learner_is_refused(study: Path, tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(study.parent)
        entry = FORMATS["checkpoint: manifest"]
        edit_json(entry.write(tmp_path, study), lambda fields: fields["sums"].pop("linf"))
        with pytest.raises(RunError, match=r"manifest.json: .* \(sums: got none of linf, expected them\)"):
            entry.read(tmp_path)
