"""The datasets that others publish: their files, where these are found, and their checksums."""

from __future__ import annotations

from typing import final

from allrounder.config.fields import Whole, value

KRIZ = "https://www.cs.toronto.edu/~kriz"
MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)
SVHN = "http://ufldl.stanford.edu/housenumbers"
CS231N = ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu")
ZENODO = "https://zenodo.org/records"
IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
"""Training images, training labels, test images, test labels."""


@final
@value
class PublishedFile:
    """One file as its authors offer it."""

    name: str
    urls: tuple[str, ...]
    """Where it is found; tried in order."""
    md5: str | None = None
    """The published checksum; nothing where there is none."""
    size: Whole | None = None
    """Bytes, to show progress where a server does not tell them, and to check where there is no checksum."""


@final
@value
class Published:
    """A dataset: the files that `get` fetches, and others that hold the same."""

    about: str
    files: tuple[PublishedFile, ...]
    others: tuple[PublishedFile, ...] = ()
    """Read where they are there, never fetched."""
    unpacked: str | None = None
    """The folder that an archive holds, for those that are read unpacked."""
    members: tuple[str, ...] = ()
    """What must be in that folder."""
    shape: tuple[int, ...] = ()
    """Of the array that every file holds, for those that are arrays; labels have its first side."""
    signs: tuple[str, ...] = ()
    """Files of which any one shows that a folder holds the dataset, besides those above."""
    images: tuple[int, int] | None = None
    """How many training and test images there are."""

    @property
    def known(self) -> tuple[PublishedFile, ...]:
        """All its files."""
        return (*self.files, *self.others)


def _file(name: str, md5: str | None, size: int, *bases: str) -> PublishedFile:
    return PublishedFile(name=name, md5=md5, size=size, urls=tuple(f"{base}/{name}" for base in bases))


def _idx(bases: tuple[str, ...], sums: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[PublishedFile, ...]:
    return tuple(_file(*row, *bases) for row in zip(IDX, sums, sizes, strict=True))


def spellings(name: str, folder: str) -> tuple[str, ...]:
    """What an idx file may be called below a folder: packed or not, and as other tools keep it."""
    names = [name, name.removesuffix(".gz")]
    names += [other.replace("-idx", ".idx") for other in names]
    return tuple(f"{place}{other}" for place in ("", "raw/", f"{folder}/raw/") for other in names)


def _zenodo(name: str, md5: str, size: int, record: int) -> PublishedFile:
    url = f"{ZENODO}/{record}/files/{name}?download=1"
    return PublishedFile(name=name, md5=md5, size=size, urls=(url,))


C_FILES = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur"),
    *("zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate"),
    *("jpeg_compression", "speckle_noise", "gaussian_blur", "spatter", "saturate"),
    "labels",
)
C_SHAPE = (50_000, 32, 32, 3)
"""10,000 images at five severities."""
PUBLISHED: dict[str, Published] = {
    "mnist": Published(
        about="handwritten digits, 28x28",
        files=_idx(
            MNIST,
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (9912422, 28881, 1648877, 4542),
        ),
        signs=spellings(IDX[2], "MNIST"),
        images=(60_000, 10_000),
    ),
    "fashion-mnist": Published(
        about="articles of clothing, 28x28",
        files=_idx(
            FASHION,
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (26421880, 29515, 4422102, 5148),
        ),
        signs=spellings(IDX[2], "FashionMNIST"),
        images=(60_000, 10_000),
    ),
    "cifar10": Published(
        about="small photographs of 10 classes, 32x32",
        files=(_file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170052171, KRIZ),),
        others=(_file("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071, KRIZ),),
        signs=(
            *("cifar-10-batches-bin/data_batch_1.bin", "data_batch_1.bin"),
            *("cifar-10-batches-py/data_batch_1", "data_batch_1"),
        ),
        images=(50_000, 10_000),
    ),
    "cifar100": Published(
        about="small photographs of 100 classes, 32x32",
        files=(_file("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168513733, KRIZ),),
        others=(_file("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437, KRIZ),),
        signs=("cifar-100-binary/train.bin", "train.bin", "cifar-100-python/train", "train"),
        images=(50_000, 10_000),
    ),
    "svhn": Published(
        about="digits of house numbers, 32x32",
        files=(
            _file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182040794, SVHN),
            _file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64275384, SVHN),
        ),
        images=(73_257, 26_032),
    ),
    "cifar10-c": Published(
        about="the test images of CIFAR-10, corrupted in 19 ways",
        files=(_zenodo("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", 2918471680, 2535967),),
        unpacked="CIFAR-10-C",
        members=tuple(f"{name}.npy" for name in C_FILES),
        shape=C_SHAPE,
    ),
    "cifar100-c": Published(
        about="the test images of CIFAR-100, corrupted in 19 ways",
        files=(_zenodo("CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", 2918473216, 3555552),),
        unpacked="CIFAR-100-C",
        members=tuple(f"{name}.npy" for name in C_FILES),
        shape=C_SHAPE,
    ),
    "tiny-imagenet": Published(
        about="photographs of 200 classes, 64x64",
        files=(_file("tiny-imagenet-200.zip", None, 248100043, *CS231N),),
        unpacked="tiny-imagenet-200",
        members=("train", "val"),
        signs=("wnids.txt", "val/val_annotations.txt"),
        images=(100_000, 10_000),
    ),
}
"""By name; the folder of the cache that holds a dataset has its name."""
