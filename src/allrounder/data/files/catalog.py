"""The catalogue of published datasets: their files, addresses and checksums."""

from __future__ import annotations

from typing import final

from allrounder.config.fields import NonNegativeInt, frozen_config

CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FASHION_MNIST_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)
SVHN_URL = "http://ufldl.stanford.edu/housenumbers"
TINY_IMAGENET_URLS = ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu")
IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""Training images, training labels, test images, test labels."""
CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@final
@frozen_config
class PublishedFile:
    """A file as its authors publish it."""

    name: str
    urls: tuple[str, ...]
    """Addresses, tried in order."""
    md5: str | None = None
    """The published checksum, if there is one."""
    size: NonNegativeInt | None = None
    """Length in bytes, for the progress bar and, without a checksum, for `verify`."""


@final
@frozen_config
class PublishedDataset:
    """A published dataset: the files that `allrounder data get` downloads, and equivalent ones."""

    about: str
    files: tuple[PublishedFile, ...]
    alternatives: tuple[PublishedFile, ...] = ()
    """Files with the same content, which are read if present but never downloaded."""
    unpacked: str | None = None
    """The top folder in the archive, for datasets that are read unpacked."""
    members: tuple[str, ...] = ()
    """Files and folders that the unpacked folder must have."""
    array_shape: tuple[int, ...] = ()
    """The shape of the array in every member, for datasets of arrays; labels have its first dimension."""
    marker_files: tuple[str, ...] = ()
    """Further files, any of which shows that a folder contains the dataset."""
    readable_folders: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For datasets that are read packed or unpacked: the folders in the archives, each with its files."""
    num_images: tuple[int, int] | None = None
    """The numbers of training and test images."""

    @property
    def all_files(self) -> tuple[PublishedFile, ...]:
        """The downloaded files and their alternatives."""
        return (*self.files, *self.alternatives)


def _file(name: str, md5: str | None, size: int, *bases: str) -> PublishedFile:
    return PublishedFile(name=name, md5=md5, size=size, urls=tuple(f"{base}/{name}" for base in bases))


def _idx(bases: tuple[str, ...], *sums: tuple[str, int]) -> tuple[PublishedFile, ...]:
    return tuple(_file(name, *row, *bases) for name, row in zip(IDX_FILES, sums, strict=True))


def idx_file_names(name: str, folder: str) -> tuple[str, ...]:
    """Possible paths of an idx file: compressed or not, and in the folders that torchvision makes."""
    names = [name, name.removesuffix(".gz")]
    names += [variant.replace("-idx", ".idx") for variant in names]
    return tuple(f"{prefix}{variant}" for prefix in ("", "raw/", f"{folder}/raw/") for variant in names)


C_FILES = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur"),
    *("zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate"),
    *("jpeg_compression", "speckle_noise", "gaussian_blur", "spatter", "saturate"),
    "labels",
)


def _corrupted(name: str, md5: str, size: int, record: int) -> PublishedDataset:
    """A dataset of the corrupted test images of another: 10,000 at five severities, for each corruption."""
    archive = f"{name}-C.tar"
    url = f"https://zenodo.org/records/{record}/files/{archive}?download=1"
    return PublishedDataset(
        about=f"the test images of {name}, corrupted in 19 ways",
        files=(PublishedFile(name=archive, md5=md5, size=size, urls=(url,)),),
        unpacked=f"{name}-C",
        members=tuple(f"{name}.npy" for name in C_FILES),
        array_shape=(50_000, 32, 32, 3),
    )


PUBLISHED: dict[str, PublishedDataset] = {
    "mnist": PublishedDataset(
        about="handwritten digits, 28x28",
        files=_idx(
            MNIST_URLS,
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28881),
            ("9fb629c4189551a2d022fa330f9573f3", 1648877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4542),
        ),
        marker_files=idx_file_names(IDX_FILES[2], "MNIST"),
        num_images=(60_000, 10_000),
    ),
    "fashion-mnist": PublishedDataset(
        about="articles of clothing, 28x28",
        files=_idx(
            FASHION_MNIST_URLS,
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29515),
            ("bef4ecab320f06d8554ea6380940ec79", 4422102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5148),
        ),
        marker_files=idx_file_names(IDX_FILES[2], "FashionMNIST"),
        num_images=(60_000, 10_000),
    ),
    "cifar10": PublishedDataset(
        about="small photographs of 10 classes, 32x32",
        files=(_file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170052171, CIFAR_URL),),
        alternatives=(
            _file("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071, CIFAR_URL),
        ),
        marker_files=(
            *("cifar-10-batches-bin/data_batch_1.bin", "data_batch_1.bin"),
            *("cifar-10-batches-py/data_batch_1", "data_batch_1"),
        ),
        readable_folders=(
            ("cifar-10-batches-bin", (*(f"{name}.bin" for name in CIFAR10_BATCHES), "batches.meta.txt")),
            ("cifar-10-batches-py", (*CIFAR10_BATCHES, "batches.meta")),
        ),
        num_images=(50_000, 10_000),
    ),
    "cifar100": PublishedDataset(
        about="small photographs of 100 classes, 32x32",
        files=(_file("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168513733, CIFAR_URL),),
        alternatives=(
            _file("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437, CIFAR_URL),
        ),
        marker_files=("cifar-100-binary/train.bin", "train.bin", "cifar-100-python/train", "train"),
        readable_folders=(
            ("cifar-100-binary", ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")),
            ("cifar-100-python", ("train", "test", "meta")),
        ),
        num_images=(50_000, 10_000),
    ),
    "svhn": PublishedDataset(
        about="digits of house numbers, 32x32",
        files=(
            _file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182040794, SVHN_URL),
            _file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64275384, SVHN_URL),
        ),
        num_images=(73_257, 26_032),
    ),
    "cifar10-c": _corrupted("CIFAR-10", "56bf5dcef84df0e2308c6dcbcbbd8499", 2918471680, 2535967),
    "cifar100-c": _corrupted("CIFAR-100", "11f0ed0f1191edbf9fa23466ae6021d3", 2918473216, 3555552),
    "tiny-imagenet": PublishedDataset(
        about="photographs of 200 classes, 64x64",
        files=(_file("tiny-imagenet-200.zip", None, 248100043, *TINY_IMAGENET_URLS),),
        unpacked="tiny-imagenet-200",
        members=("train", "val"),
        marker_files=("wnids.txt", "val/val_annotations.txt"),
        num_images=(100_000, 10_000),
    ),
}
"""By name, which is also the name of the folder in the cache."""
