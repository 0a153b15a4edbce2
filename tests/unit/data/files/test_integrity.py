"""What `data check` and `data get` say of sets that are not whole, and how a folder is recognised."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allrounder.data import DATASETS, Folder, ImageNet, TinyImageNet
from allrounder.data.datasets.cifar import Cifar10
from allrounder.data.datasets.mnist import FashionMnist, Mnist
from allrounder.data.datasets.npz import Npz
from allrounder.data.files import integrity
from allrounder.data.files.cache import manual_instructions
from allrounder.data.files.catalog import IDX_FILES, PUBLISHED, PublishedDataset, PublishedFile
from allrounder.data.files.integrity import array_problems
from allrounder.data.inputs.by_name import load_eval_data, resolve_dataset
from tests.support import formats
from tests.support.pictures import write_animals, write_tiny_imagenet
from tests.unit.cli.test_data import COLOUR, GREY, cache, server
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder", "cache", "server"]  # fixtures


def test_check_decodes_every_image_of_a_folder(allrounder: Command, cache: Path, tmp_path: Path):
    pets = write_animals(tmp_path / "pets")
    whole = allrounder("data", "check", str(pets))
    assert whole.code == 0, whole.err
    assert "pets train: 6 images 3x6x6, 2 classes" in whole.out and "pets test: 4 images" in whole.out
    for name in ("train/b-dog/1.png", "val/a-cat/1.png"):
        (pets / name).write_bytes((pets / name).read_bytes()[:50])
    for text in (str(pets), f"folder:{pets}", f'{{ kind = "folder", path = "{pets}", workers = 1 }}'):
        broken = allrounder("data", "check", text)
        assert broken.code == 1 and "nothing is wrong" not in broken.out
        for name in ("train/b-dog/1.png", "val/a-cat/1.png"):
            assert f"error: {pets / name}: cannot be read as an image" in flat(broken.err)
        assert broken.err.count("error: ") == 2


def test_number_of_reported_damaged_images_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(integrity, "MAX_REPORTED", 2)
    monkeypatch.setattr(integrity, "BATCH_SIZE", 4)
    pets, steps = write_animals(tmp_path / "pets"), list[int]()
    data = Folder(path=str(pets), workers=0).load()
    assert integrity.find_damaged_images(data.train, steps.append) == [] and steps == [4, 6]
    for path in (pets / "train").rglob("*.png"):
        path.write_bytes(b"")
    problems = integrity.find_damaged_images(data.train, steps.append)
    assert len(problems) == 3 and problems[-1] == f"{pets / 'train'}: there may be more such images"


def test_check_accepts_a_folder_of_test_images(allrounder: Command, cache: Path, tmp_path: Path):
    write_animals(tmp_path / "pets")
    answer = allrounder("data", "check", str(tmp_path / "pets" / "val"))
    assert answer.code == 0 and "val test: 4 images" in answer.out and "train:" not in answer.out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> PublishedDataset:
    """CIFAR-10-C with two files of small images."""
    entry = PublishedDataset(
        about="corrupted",
        files=(PublishedFile(name="CIFAR-10-C.tar", urls=("http://127.0.0.1:9/x",)),),
        unpacked="CIFAR-10-C",
        members=("fog.npy", "labels.npy"),
        array_shape=(10, 4, 4, 3),
    )
    monkeypatch.setitem(PUBLISHED, "cifar10-c", entry)
    return entry


def corrupted(folder: Path) -> Path:
    folder.mkdir(parents=True)
    np.save(folder / "fog.npy", np.zeros((10, 4, 4, 3), np.uint8))
    np.save(folder / "labels.npy", np.zeros(10, np.uint8))
    return folder


def test_dataset_of_arrays_is_checked(
    allrounder: Command, cache: Path, tmp_path: Path, small: PublishedDataset
):
    folder = corrupted(cache / "cifar10-c" / "CIFAR-10-C")
    for name in ("CIFAR-10-C", f"cifar10-c:{folder}", f"cifar10-c:{folder.parent}"):
        assert allrounder("data", "check", name).code == 0
    again = allrounder("data", "get", "cifar10-c")
    assert again.code == 0 and "already there, unpacked" in again.out
    np.save(folder / "fog.npy", np.zeros((10, 4, 4), np.uint8))
    assert "fog.npy: holds uint8 of shape (10, 4, 4), expected whole" in array_problems(small, folder)[0]
    np.save(folder / "fog.npy", np.zeros((10, 4, 4, 3)))
    assert "holds float64" in array_problems(small, folder)[0]
    (folder / "fog.npy").write_bytes((folder / "fog.npy").read_bytes()[:-1])
    (folder / "labels.npy").unlink()
    answer = allrounder("data", "check", "cifar10-c")
    assert answer.code == 1 and "fog.npy: cut short or damaged" in flat(answer.err)
    assert f"error: {folder}: has no labels.npy; get the set again" in flat(answer.err)
    refused = allrounder("data", "get", "cifar10-c")
    assert refused.code == 1 and "is incomplete, it has no labels.npy; move it away" in flat(refused.err)


def test_empty_folder_is_no_dataset(allrounder: Command, cache: Path, small: PublishedDataset):
    (cache / "cifar10-c" / "CIFAR-10-C").mkdir(parents=True)
    answer = allrounder("data", "check", "cifar10-c")
    assert answer.code == 1 and "has no fog.npy, labels.npy" in flat(answer.err)
    fetched = allrounder("data", "get", "cifar10-c")
    assert fetched.code == 1 and "CIFAR-10-C.tar: cannot be downloaded" in flat(fetched.err)
    message = "and unpack it with: allrounder data get cifar10-c"
    assert message in flat(fetched.err) and message in manual_instructions(small.files[0], cache)


def test_the_published_sets_of_arrays_have_nineteen_corruptions_and_labels():
    for kind in ("cifar10-c", "cifar100-c"):
        assert len(set(PUBLISHED[kind].members)) == 20 and "labels.npy" in PUBLISHED[kind].members
        assert PUBLISHED[kind].array_shape == (50_000, 32, 32, 3)
    assert all(PUBLISHED[kind].num_images for kind in PUBLISHED if kind in DATASETS)


def test_damaged_archive_without_a_checksum_is_downloaded_again(
    allrounder: Command, server: Any, cache: Path
):
    good = server.files["tiny-imagenet-200.zip"]
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("tiny-imagenet-200/words.txt", "n01443537\tgoldfish")
    damaged = raw.getvalue().replace(b"gold", b"mold")
    server.files["tiny-imagenet-200.zip"] = damaged
    answer = allrounder("data", "get", "tiny-imagenet")
    assert answer.code == 1 and "it was renamed to tiny-imagenet-200.zip.damaged" in flat(answer.err)
    server.files["tiny-imagenet-200.zip"] = good
    again = allrounder("data", "get", "tiny-imagenet")
    assert again.code == 0 and len(server.requests) == 2, again.err
    assert (cache / "tiny-imagenet" / "tiny-imagenet-200" / "words.txt").is_file()


def test_packed_archive_error_names_the_unpack_command(tmp_path: Path, cache: Path):
    for folder, more in ((cache / "tiny-imagenet", ""), (tmp_path / "own", f" --from {tmp_path / 'own'}")):
        folder.mkdir(parents=True)
        (folder / "tiny-imagenet-200.zip").write_bytes(b"PK")
        with pytest.raises(FileNotFoundError) as raised:
            TinyImageNet(folder=str(folder)).load()
        message = f"not unpacked; unpack it with: allrounder data get tiny-imagenet{more}"
        assert str(raised.value).endswith(message)


def test_imagenet_cannot_be_downloaded(allrounder: Command, cache: Path):
    answer = allrounder("data", "get", "ImageNet")
    assert answer.code == 1 and "register at image-net.org" in flat(answer.err)
    assert str(cache / "imagenet") in flat(answer.err)
    assert "there is nothing to download" in flat(allrounder("data", "get", "embedded").err)
    check = allrounder("data", "check", "imagenet")
    assert check.code == 1 and f"{cache / 'imagenet'}: no such folder" in flat(check.err)


def test_wrong_local_file_raises_one_error(allrounder: Command, server: Any, cache: Path, tmp_path):
    (tmp_path / "source" / IDX_FILES[0]).write_bytes(b"mine")
    answer = allrounder("data", "get", "mnist", "--from", str(tmp_path / "source"))
    assert answer.code == 1 and "has MD5" in flat(answer.err) and "put it at" not in flat(answer.err)


def test_folders_are_recognised_by_their_contents(tmp_path: Path, cache: Path):
    pets = write_animals(tmp_path / "pets")
    assert resolve_dataset(str(pets)) == Folder(path=str(pets))
    tiny = write_tiny_imagenet(tmp_path / "tiny")
    assert resolve_dataset(str(tiny)) == TinyImageNet(folder=str(tiny))
    formats.write_tar(tmp_path / "c" / "cifar-10-binary.tar.gz", formats.cifar10_binary(*COLOUR))
    packed = tmp_path / "c" / "cifar-10-binary.tar.gz"
    assert resolve_dataset(str(packed.parent)) == Cifar10(folder=str(packed.parent))
    for text in (str(packed.parent), str(packed), f"cifar10:{packed}", f"CIFAR-10:{packed.parent}"):
        assert len(load_eval_data(text).test) == 20
    classes = write_animals(tmp_path / "ids")
    for split in ("train", "val"):
        (classes / split / "a-cat").rename(classes / split / "n00000001")
        (classes / split / "b-dog").rename(classes / split / "n00000002")
    assert resolve_dataset(str(classes)) == ImageNet(folder=str(classes))
    np.savez(tmp_path / "test.npz", x=COLOUR[1][0], y=COLOUR[1][1])
    assert len(load_eval_data(f"npz:{tmp_path / 'test.npz'}").test) == 20
    np.savez(
        tmp_path / "both.npz",
        x_train=COLOUR[0][0],
        y_train=COLOUR[0][1],
        x_test=COLOUR[1][0],
        y_test=[0] * 20,
    )
    assert resolve_dataset(f"npz:{tmp_path / 'both.npz'}") == Npz(path=str(tmp_path / "both.npz"))


def test_datasets_with_equal_file_names_are_distinguished(tmp_path: Path):
    formats.write_idx(tmp_path / "x", *GREY, packed=False)
    with pytest.raises(ValueError, match=rf"files of mnist and fashion-mnist.* mnist:{tmp_path / 'x'}"):
        resolve_dataset(str(tmp_path / "x"))
    (tmp_path / "x").rename(tmp_path / "Fashion_MNIST")
    folder = str(tmp_path / "Fashion_MNIST")
    assert resolve_dataset(folder) == FashionMnist(folder=folder)
    assert resolve_dataset(f"mnist:{folder}") == Mnist(folder=folder)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inner", ["MNIST/raw", "raw", "."])
def test_idx_files_are_found_in_the_folders_of_torchvision(tmp_path: Path, inner: str, packed: bool):
    formats.write_idx(tmp_path / "mnist" / inner, *GREY, packed=packed)
    for path in (tmp_path / "mnist" / inner).iterdir():
        if "labels" in path.name:
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(Mnist(folder=str(tmp_path / "mnist")).load().train) == 40
    assert resolve_dataset(str(tmp_path / "mnist")) == Mnist(folder=str(tmp_path / "mnist"))
