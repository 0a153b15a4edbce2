"""Every kind of file that a user may hand in: how to write an intact one, and how the package reads it.

`FORMATS` is the table of the tests of hostile files. A new loader adds an entry; `tests/contract/
test_every_loader.py` fails until it does.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from PIL import Image

from allrounder.data.base import Data, TensorSplit
from allrounder.data.corruptions.datasets import find_set
from allrounder.data.corruptions.generate import make_set
from allrounder.data.datasets.cifar import Cifar10, Cifar100
from allrounder.data.datasets.folder import Folder
from allrounder.data.datasets.imagenet import ImageNet, TinyImageNet
from allrounder.data.datasets.mnist import Mnist
from allrounder.data.datasets.npz import Npz
from allrounder.data.datasets.svhn import Svhn
from allrounder.data.extra import Extra
from allrounder.data.files.archives import extract
from allrounder.data.files.catalog import PUBLISHED
from allrounder.data.files.integrity import array_problems
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.errors import DataError, RunError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments.collect import read_results
from allrounder.experiments.manifest import Manifest, collect_results
from allrounder.experiments.publish import publish_study
from allrounder.experiments.study import Study
from allrounder.experiments.watcher import Watcher
from allrounder.models.external import load_network
from allrounder.models.small_cnn import SmallCnn
from allrounder.recipe.recipe import Recipe
from allrounder.report.dial import DIAL_FILE, DIAL_FOLDER
from allrounder.system.checked_files import write_json
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.support import formats
from tests.support.studies import run_here, tiny_study
from tests.support.trainings import SOLO

SHAPE = (1, 12, 12)
COLOUR = formats.random_images(15, (3, 32, 32), 10), formats.random_images(5, (3, 32, 32), 10, seed=1)
GREY = formats.random_images(12, (28, 28), 10), formats.random_images(6, (28, 28), 10, seed=1)
RUN, EVAL = "slow/seed-0", "slow/seed-0/eval/best"


@final
@dataclass(frozen=True)
class Format:
    """One kind of file."""

    write: Callable[[Path, Path], Path]
    """Writes an intact input into an empty folder, with the help of a finished study; returns the file."""
    read: Callable[[Path], object]
    """Reads the input in the folder as the package does for a user."""
    is_checked: bool = False
    """Whether a digest protects every byte, so that any damage is found."""
    is_json: bool = False
    """Whether it is JSON with a digest, in which tests change fields and write the right digest."""


def write_text(name: str, text: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write


def write_npz(folder: Path, study: Path) -> Path:
    (x, y), (test_x, test_y) = COLOUR
    np.savez_compressed(folder / "own.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    return folder / "own.npz"


def write_idx(packed: bool) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        formats.write_idx(folder, *GREY, packed=packed)
        return folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"

    return write


def write_archive(name: str, members: dict[str, bytes]) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        formats.write_tar(folder / name, members)
        return folder / name

    return write


def write_members(members: dict[str, bytes], name: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        for path, raw in members.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(raw)
        return folder / name

    return write


def write_tree(suffix: str) -> Callable[[Path, Path], Path]:
    """A folder with a file of unpacked members, packed by the standard library."""

    def write(folder: Path, study: Path) -> Path:
        source = folder / "source" / "top"
        source.mkdir(parents=True)
        for number in range(3):
            (source / f"{number}.txt").write_bytes(bytes(range(100)) * number)
        kinds = {"tar.gz": "gztar", "tar.bz2": "bztar", "tar.xz": "xztar"}
        made = shutil.make_archive(str(folder / "pack"), kinds.get(suffix, suffix), folder / "source")
        shutil.rmtree(folder / "source")
        return Path(made)

    return write


def unpack(folder: Path) -> None:
    archive = next(iter(folder.glob("pack.*")), folder / "pack.zip")
    try:
        extract(archive, folder / "unpacked", "top")
    finally:
        shutil.rmtree(folder / "unpacked", ignore_errors=True)
        assert not [path for path in folder.iterdir() if path.suffix != ".lock" and path != archive]


def write_mat(folder: Path, study: Path) -> Path:
    formats.write_svhn(folder, *COLOUR)
    return folder / "train_32x32.mat"


def write_images(suffix: str, **options: Any) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        rng = np.random.default_rng(0)
        for part in ("train", "val"):
            for name in ("n00000000", "n00000001"):
                (folder / part / name).mkdir(parents=True)
                for number in range(2):
                    pixels = Image.fromarray(rng.integers(0, 256, (10, 10, 3), dtype=np.uint8))
                    pixels.save(folder / part / name / f"{number}{suffix}", **options)
        return folder / "train" / "n00000000" / f"0{suffix}"

    return write


def write_list(name: str, text: str) -> Callable[[Path, Path], Path]:
    """Images, and a text file about them."""

    def write(folder: Path, study: Path) -> Path:
        write_images(".png")(folder, study)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write


def write_tiny(name: str) -> Callable[[Path, Path], Path]:
    """Tiny-ImageNet with the test images in one folder."""

    def write(folder: Path, study: Path) -> Path:
        rng = np.random.default_rng(0)
        places = [f"train/n0000000{k}/images" for k in range(2)] + ["val/images"]
        for place in places:
            (folder / place).mkdir(parents=True)
            for number in range(2):
                pixels = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
                pixels.save(folder / place / f"{number}.JPEG")
        lines = [f"{number}.JPEG\tn0000000{number}\t0\t0\t1\t1" for number in range(2)]
        (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
        (folder / "words.txt").write_text("n00000000\tcat, tom\nn00000001\tdog\n")
        (folder / "wnids.txt").write_text("n00000000\nn00000001\n")
        if name == "wnids.txt":
            shutil.rmtree(folder / "train")
        return folder / name

    return write


def fetch_all(data: Data) -> None:
    for split in (data.train, data.test):
        split.fetch(torch.arange(len(split)))


def network_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return SmallCnn(width=2).build(3, SHAPE).state_dict()


def write_torch(name: str, **options: Any) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        torch.save({"state_dict": network_weights(), "epoch": 3}, folder / name, **options)
        return folder / name

    return write


def write_safetensors(folder: Path, study: Path) -> Path:
    from safetensors.torch import save_file

    save_file(network_weights(), folder / "own.safetensors")
    return folder / "own.safetensors"


def read_network(folder: Path) -> object:
    file = next(iter(folder.glob("own.*")), folder / "own.pt")
    factory = folder / "factory.py"
    factory.write_text(
        "from allrounder.models.small_cnn import SmallCnn\n"
        f"def make():\n    return SmallCnn(width=2).build(3, {SHAPE})\n"
    )
    try:
        return load_network(f"{factory}:make", file, classes=3, shape=SHAPE)
    finally:
        factory.unlink()


def copy_study(pattern: str, *, is_finished: bool = True) -> Callable[[Path, Path], Path]:
    """A copy of the finished study; without its last weights, a training continues from its checkpoint."""

    def write(folder: Path, study: Path) -> Path:
        shutil.copytree(study, folder / "study")
        run = folder / "study" / RUN
        if not is_finished:
            shutil.rmtree(next((run / "weights").glob("last-*")))
        return sorted((folder / "study").glob(pattern))[0]

    return write


def read_run(folder: Path) -> None:
    run = folder / "study" / RUN
    results = read_results([run])
    Watcher(run).read_state(0.0, None)
    Run(run).summary()
    for which in ("last", "best", "linf"):
        load(run, which)
    raise_problems(results)


def read_study_folder(folder: Path) -> None:
    study = folder / "study"
    results = read_results([study])
    Watcher(study).read_state(0.0, 0)
    collect_results(Manifest.load(study), study)
    raise_problems(results)


def raise_problems(results: Any) -> None:
    """Damage that a report only notes counts as refused."""
    problems = [problem for entry in results.entries for problem in entry.problems]
    if problems:
        raise RunError("; ".join(problems))


def continue_training(folder: Path) -> None:
    run = folder / "study" / RUN
    train(Run(run).recipe, run, resume=True, progress=False)


def evaluate_again(folder: Path) -> None:
    torch.manual_seed(0)
    network = SmallCnn(width=2).build(2, (3, 16, 16)).eval()
    options = EvalOptions(check="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged results, which are computed again
        evaluate(network, corrupted_split(), probes=["pgd-1@Linf:0.1"], out=folder / "eval", options=options)


def write_evaluation(pattern: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        evaluate_again(folder)
        return sorted((folder / "eval").glob(pattern))[0]

    return write


def publish(pattern: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        publish_study(study, folder / "study")
        return sorted((folder / "study").glob(pattern))[0]

    return write


def write_dial(folder: Path, study: Path) -> Path:
    copy_study("study.json")(folder, study)
    file = folder / "study" / RUN / DIAL_FOLDER / DIAL_FILE
    file.parent.mkdir()
    point = {"shares": {"linf": 1.0}, "natural": 0.5, "robust": {"Linf:0.1": 0.2}, "worst": 0.2, "mean": 0.2}
    write_json(file, {"format": 1, "points": [point]})
    return file


def corrupted_split() -> Any:
    x, y = formats.random_images(4, (3, 16, 16), 2)
    return TensorSplit(torch.from_numpy(x), torch.from_numpy(y), 2)


def write_corrupted(name: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, study: Path) -> Path:
        make_set(corrupted_split(), folder / "set", "c", names=["contrast"])
        return folder / "set" / name

    return write


def read_corrupted(folder: Path) -> None:
    found = find_set(corrupted_split(), "c", ["contrast"], folder / "set")
    found.fetch("contrast", 1, torch.arange(2))


def read_array_set(folder: Path) -> list[str]:
    entry = replace(PUBLISHED["cifar10-c"], members=("contrast.npy",))
    if problems := array_problems(replace(entry, array_shape=(20, 16, 16, 3)), folder / "set"):
        raise DataError("; ".join(problems))
    return []


CIFAR10_BINARY, CIFAR10_PYTHON = formats.cifar10_binary(*COLOUR), formats.cifar10_python(*COLOUR)
TRAIN100, TEST100 = ((x, y, y) for x, y in COLOUR)
CIFAR100_BINARY = formats.cifar100_binary(TRAIN100, TEST100)
CIFAR100_PYTHON = formats.cifar100_python(TRAIN100, TEST100)
STUDY = "base = 'embedded/at-linf'\nseeds = [0, 1]\n[[row]]\nlabel = 'a'\n[[row]]\nlabel = 'b'\n"


def read_cifar(cls: Any) -> Callable[[Path], object]:
    return lambda folder: fetch_all(cls(folder=str(folder)).load())


def read_folder(folder: Path) -> None:
    fetch_all(Folder(path=str(folder), workers=0).load())


def read_tiny(folder: Path) -> None:
    spec = TinyImageNet(folder=str(folder), workers=0)
    fetch_all(spec.load() if (folder / "train").is_dir() else spec.load_test())


def read_imagenet(folder: Path) -> None:
    fetch_all(ImageNet(folder=str(folder), size=8, workers=0).load())


def read_subset(folder: Path) -> None:
    fetch_all(Folder(path=str(folder), subset=str(folder / "list.txt"), workers=0).load())


def read_extra(folder: Path) -> None:
    data = Npz(path=str(folder / "own.npz"))
    with_classes = TensorSplit(torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.arange(10), 10)
    main = Data("main", with_classes, with_classes, tuple(map(str, range(10))))
    Extra(data=data, share=0.5).load(main)


FORMATS: dict[str, Format] = {
    "recipe": Format(write_text("own.toml", SOLO), lambda folder: Recipe.load(folder / "own.toml")),
    "study": Format(write_text("own.toml", STUDY), lambda folder: Study.load(str(folder / "own.toml"))),
    "npz": Format(write_npz, lambda folder: fetch_all(Npz(path=str(folder / "own.npz")).load())),
    "npz by name": Format(write_npz, lambda folder: load_eval_data(str(folder / "own.npz"))),
    "npz of extra images": Format(write_npz, read_extra),
    "idx": Format(write_idx(False), lambda folder: fetch_all(Mnist(folder=str(folder)).load())),
    "idx.gz": Format(write_idx(True), lambda folder: fetch_all(Mnist(folder=str(folder)).load())),
    "CIFAR-10 binary archive": Format(
        write_archive("cifar-10-binary.tar.gz", CIFAR10_BINARY), read_cifar(Cifar10)
    ),
    "CIFAR-10 pickled archive": Format(
        write_archive("cifar-10-python.tar.gz", CIFAR10_PYTHON), read_cifar(Cifar10)
    ),
    "CIFAR-10 binary file": Format(
        write_members(CIFAR10_BINARY, "cifar-10-batches-bin/data_batch_3.bin"), read_cifar(Cifar10)
    ),
    "CIFAR-10 pickled file": Format(
        write_members(CIFAR10_PYTHON, "cifar-10-batches-py/data_batch_3"), read_cifar(Cifar10)
    ),
    "CIFAR-10 pickled names": Format(
        write_members(CIFAR10_PYTHON, "cifar-10-batches-py/batches.meta"), read_cifar(Cifar10)
    ),
    "CIFAR-100 binary file": Format(
        write_members(CIFAR100_BINARY, "cifar-100-binary/train.bin"), read_cifar(Cifar100)
    ),
    "CIFAR-100 pickled file": Format(
        write_members(CIFAR100_PYTHON, "cifar-100-python/train"), read_cifar(Cifar100)
    ),
    "mat": Format(write_mat, lambda folder: fetch_all(Svhn(folder=str(folder)).load())),
    "png": Format(write_images(".png"), read_folder),
    "jpeg": Format(write_images(".jpg"), read_folder),
    "gif": Format(write_images(".gif"), read_folder),
    "bmp": Format(write_images(".bmp"), read_folder),
    "ppm": Format(write_images(".ppm"), read_folder),
    "tiff": Format(write_images(".tif"), read_folder),
    "webp": Format(write_images(".webp"), read_folder),
    "list of images": Format(write_list("list.txt", "n00000000/0.png\nn00000001/1.png\n"), read_subset),
    "class names": Format(write_list("words.txt", "n00000000\tcat\nn00000001\tdog\n"), read_imagenet),
    "annotations": Format(write_tiny("val/val_annotations.txt"), read_tiny),
    "list of classes": Format(write_tiny("wnids.txt"), read_tiny),
    "tar": Format(write_tree("tar"), unpack),
    "tar.gz": Format(write_tree("tar.gz"), unpack),
    "tar.bz2": Format(write_tree("tar.bz2"), unpack),
    "tar.xz": Format(write_tree("tar.xz"), unpack),
    "zip": Format(write_tree("zip"), unpack),
    "safetensors": Format(write_safetensors, read_network),
    "torch.save": Format(write_torch("own.pt"), read_network),
    "torch.save, legacy": Format(write_torch("own.pth", _use_new_zipfile_serialization=False), read_network),
    "run: format": Format(copy_study(f"{RUN}/format.json"), read_run, True, True),
    "run: recipe": Format(copy_study(f"{RUN}/recipe.toml"), read_run, True),
    "run: log": Format(copy_study(f"{RUN}/metrics.jsonl"), read_run, True),
    "run: sessions": Format(copy_study(f"{RUN}/env.json"), read_run, True, True),
    "run: manifest": Format(copy_study(f"{RUN}/weights/last-*/manifest.json"), read_run, True, True),
    "run: weights": Format(copy_study(f"{RUN}/weights/last-*/global.safetensors"), read_run, True),
    "run: outcome": Format(copy_study(f"{EVAL}/outcome.safetensors"), read_run, True),
    "run: mixtures": Format(write_dial, read_run, True, True),
    "checkpoint: manifest": Format(
        copy_study(f"{RUN}/checkpoints/*/manifest.json", is_finished=False), continue_training, True, True
    ),
    "checkpoint: learner": Format(
        copy_study(f"{RUN}/checkpoints/*/linf.safetensors", is_finished=False), continue_training, True
    ),
    "evaluation: plan": Format(write_evaluation("plan.json"), evaluate_again, True, True),
    "evaluation: results": Format(write_evaluation("results/*/*.safetensors"), evaluate_again),
    "evaluation: outcome": Format(write_evaluation("outcomes/*.safetensors"), evaluate_again, True),
    "study: manifest": Format(copy_study("study.json"), read_study_folder, True, True),
    "study: signature": Format(copy_study("slow/seed-0/eval/best.json"), read_study_folder, True, True),
    "study: outcome": Format(copy_study(f"{EVAL}/outcome.safetensors"), read_study_folder, True),
    "publication: list": Format(publish("published.json"), read_study_folder, True, True),
    "publication: manifest": Format(publish("study.json"), read_study_folder, True, True),
    "publication: study": Format(publish("study.toml"), read_study_folder, True),
    "publication: outcome": Format(publish(f"{EVAL}/outcome.safetensors"), read_study_folder, True),
    "corrupted images": Format(write_corrupted("contrast.npy"), read_corrupted),
    "corrupted images: labels": Format(write_corrupted("labels.npy"), read_corrupted),
    "corrupted images: mark": Format(write_corrupted("generated.json"), read_corrupted),
    "corrupted images, checked": Format(write_corrupted("contrast.npy"), read_array_set),
}
"""All kinds of files, by name."""


def make_study(folder: Path) -> Path:
    """Run the study that the table needs: one training and its evaluation, with relative paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = tiny_study(Path())
        run_here(replace(study, images=9, seeds=(0,), row=study.row[:1]), Path("out"))
    return folder / "out"
