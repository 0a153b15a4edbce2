"""Random crops are cut from whole images, decoded once; what is evaluated is the centre."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from allrounder.data import Folder, TinyImageNet
from allrounder.data.augment import Chain, ColorJitter, CropFlip, ResizedCrop
from allrounder.data.base import Data, Split, Subset, TensorSplit
from allrounder.data.batches import Batches, ExtraBatches
from allrounder.data.splits import ConcatSplit, Relabelled, hold_out
from allrounder.data.streaming import decode
from allrounder.data.streaming.decode import Crops
from allrounder.data.streaming.split import LazySplit
from allrounder.data.views import fetch_views, has_whole_images
from allrounder.rng import Rng
from tests.support.pictures import noise, save, write_tiny_imagenet

SIZE = 32
RNG = Rng(3)


def write_framed(root: Path, count: int = 6) -> Path:
    """Large images of noise in green and blue with a wide red frame, which the central crop never meets."""
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            for number in range(count):
                pixels = noise(number + 100 * (name == "dog"), 60, 80 + 4 * number).repeat(5, 0).repeat(5, 1)
                pixels[..., 0] = 0
                framed = np.zeros_like(pixels)
                framed[..., 0] = 255
                # The centre crop leaves out 16 rows at either end, of which antialiasing sees a few.
                framed[6:-6, 36:-36] = pixels[6:-6, 36:-36]
                save(root / part / name / f"{number}.png", framed)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_framed(tmp_path_factory.mktemp("framed"))


def load(root: Path, workers: int = 0) -> Data:
    return Folder(path=str(root), size=SIZE, workers=workers).load()


def draw(count: int, size: tuple[int, int] = (SIZE, SIZE), augment: ResizedCrop = ResizedCrop()) -> Crops:
    return augment.draw_crops(count, size, RNG)


def expected_crop(path: str, crops: Crops, row: int) -> torch.Tensor:
    """The crop of one image, from its file, with Pillow alone."""
    with Image.open(path) as image:
        part = image.convert("RGB").crop(crops.box(image.width, image.height, row))
    crop = part.resize((crops.width, crops.height), Image.Resampling.BILINEAR)
    if crops.flip and crops.draws[row][-1] < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(crop).transpose(2, 0, 1)).float() / 255


def test_crops_equal_a_direct_computation_from_the_whole_image(root: Path):
    split = load(root).train
    assert isinstance(split, LazySplit)
    index = torch.tensor([7, 0, 11, 3, 3, 5, 8])
    crops = draw(len(index))
    (x,) = fetch_views(split, index, [crops])
    expected = [expected_crop(split.files.path(row), crops, i) for i, row in enumerate(index.tolist())]
    assert torch.equal(x, torch.stack(expected)) and x.is_contiguous()
    assert not torch.equal(x[3], x[4]), "every row of a batch has its own crop, also of the same image"


def test_training_crops_reach_the_border_and_evaluated_images_never_do(root: Path):
    data = load(root)
    train, held_out = hold_out(data.train, 4, Rng(0))
    for split in (train, held_out, data.test):
        x = split.fetch(torch.arange(len(split)))
        assert (x[:, 0] == 0).all(), "the frame is cut off"
    batches = Batches(train, 4, Rng(0))
    seen = [
        batches.views_at(1, step, lambda t, n: {"": ResizedCrop().draw_crops(n, (SIZE, SIZE), Rng(t))})[""]
        for step in range(1, batches.steps + 1)
    ]
    reds = torch.cat([batch.x[:, 0].amax((1, 2)) for batch in seen])
    assert (reds > 0.9).any() and all(batch.is_cropped for batch in seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_processes_cuts_the_same_crops(root: Path, workers: int):
    alone, pooled = load(root).train, load(root, workers).train
    index = torch.arange(10)
    views = [draw(10), None, draw(10, (20, 48), ResizedCrop(flip=False))]
    expected = fetch_views(alone, index, views)
    assert [tuple(x.shape[1:]) for x in expected] == [(3, 32, 32), (3, 32, 32), (3, 20, 48)]
    assert isinstance(pooled, LazySplit)
    pooled.prefetch_views(index, views)
    assert len(pooled._prefetched) == 1
    for found in (pooled.fetch_views(index, views), pooled.fetch_views(index, views)):
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not pooled._prefetched and torch.equal(pooled.fetch(index), expected[1])


def test_several_views_decode_a_file_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    real = decode.open_image

    def counted(path: str):
        opened.append(path)
        return real(path)

    monkeypatch.setattr(decode, "open_image", counted)
    fetch_views(load(root).train, torch.tensor([2, 5]), [draw(2), None, draw(2, (8, 8))])
    assert len(opened) == 4, "two files, and two to check the shape of the data"


def test_views_pass_through_splits_that_are_made_of_others(root: Path):
    files = load(root).train
    index, crops = torch.tensor([3, 0, 9, 6]), draw(4)
    (expected,) = fetch_views(files, index, [crops])
    part = Subset(files, torch.arange(12).flip(0))
    relabelled = Relabelled(part, 1 - part.labels)
    for split in (part, relabelled):
        assert has_whole_images(split)
        assert torch.equal(fetch_views(split, 11 - index, [crops])[0], expected)
    memory = TensorSplit(torch.rand(5, 3, SIZE, SIZE), torch.zeros(5, dtype=torch.int64), 2)
    both = ConcatSplit(memory, files)
    assert has_whole_images(both) and not has_whole_images(memory)
    mixed, plain = fetch_views(both, torch.tensor([8, 1, 14, 11]), [crops, None])
    assert torch.equal(mixed[[0, 2, 3]], expected[[0, 2, 3]])
    assert torch.equal(mixed[1], fetch_views(memory, torch.tensor([1]), [crops.select([1])])[0][0])
    assert torch.equal(plain, both.fetch(torch.tensor([8, 1, 14, 11])))


def test_batches_with_extra_images_have_views(root: Path):
    files = load(root).train
    batches = ExtraBatches(files, files, 2, 6, Rng(0))
    crops = draw(6)
    seen = batches.views_at(1, 2, lambda t, n: {"cropped": crops, "same": replace(crops), "plain": None})
    assert seen["cropped"].x is seen["same"].x and not seen["plain"].is_cropped
    assert torch.equal(seen["plain"].x, batches.at(1, 2).x)
    rows = seen["cropped"].index % len(files)
    assert torch.equal(seen["cropped"].x, fetch_views(files, rows, [crops])[0])


def test_images_of_one_size_are_cropped_from_their_files_too(tmp_path: Path):
    split: Split = TinyImageNet(folder=str(write_tiny_imagenet(tmp_path / "x")), workers=0).load().train
    assert isinstance(split, LazySplit)
    crops = draw(3, (64, 64))
    (x,) = fetch_views(split, torch.arange(3), [crops])
    assert torch.equal(x[2], expected_crop(split.files.path(2), crops, 2))


@given(
    width=st.integers(1, 500),
    height=st.integers(1, 500),
    seed=st.integers(0, 99),
    ratio=st.sampled_from([(0.75, 4 / 3), (1.0, 1.0), (0.1, 0.2)]),
)
def test_a_crop_lies_in_the_image_and_keeps_its_ranges(width: int, height: int, seed: int, ratio):
    augment = ResizedCrop(scale=(0.08, 1.0), ratio=ratio)
    left, top, right, bottom = augment.draw_crops(1, (10, 20), Rng(seed)).box(width, height, 0)
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    w, h = right - left, bottom - top
    if min(w, h) > 20:  # else rounding to whole pixels decides
        assert 0.9 * ratio[0] < w / h / 2 < 1.1 * ratio[1], "relative to the aspect ratio of the result"


def test_crops_have_the_published_distribution():
    crops = draw(3000, augment=ResizedCrop(scale=(0.08, 1.0)))
    boxes = [crops.box(300, 300, row) for row in range(3000)]
    areas = np.array([(right - left) * (bottom - top) / 300**2 for left, top, right, bottom in boxes])
    # On a square image, a part of area a and aspect ratio r fits if a <= min(r, 1 / r).
    u, v = np.random.default_rng(0).random((2, 200_000))
    areas_drawn, ratios = 0.08 + 0.92 * u, np.exp((2 * v - 1) * math.log(4 / 3))
    accepted = areas_drawn[areas_drawn <= np.minimum(ratios, 1 / ratios)]
    assert abs(areas.mean() - accepted.mean()) < 4 * accepted.std() / math.sqrt(3000)
    lefts = np.array([left / (300 - (right - left)) for left, _, right, _ in boxes if right - left < 200])
    assert abs(lefts.mean() - 0.5) < 0.03


def test_a_part_that_never_fits_becomes_the_largest_in_the_centre():
    crops = draw(1, (16, 16), ResizedCrop(scale=(1.0, 1.0)))
    assert crops.box(900, 90, 0) == (390, 0, 510, 90)
    assert crops.box(90, 900, 0) == (0, 390, 90, 510)
    assert crops.box(90, 90, 0) == (0, 0, 90, 90)


def test_only_an_augmentation_that_begins_with_a_crop_draws_crops():
    chain = Chain(steps=(ResizedCrop(), ColorJitter()))
    assert chain.draw_crops(2, (8, 8), RNG) == ResizedCrop().draw_crops(2, (8, 8), RNG.fold_in("step", 0))
    assert Chain(steps=(ColorJitter(), ResizedCrop())).draw_crops(2, (8, 8), RNG) is None
    assert CropFlip().draw_crops(2, (8, 8), RNG) is None
