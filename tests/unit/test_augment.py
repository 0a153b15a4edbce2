from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.data.augment import AUGMENTS, CropFlip, NoAugment
from allrounder.rng import Draws


def crop_flip_slowly(x, pad, flip, draws):
    """The slow twin: one image, one pixel at a time."""
    n, _, h, w = x.shape
    u = draws.uniform(torch.empty(n, 3, dtype=torch.float64))
    out = torch.zeros_like(x)
    for i in range(n):
        down, right = int(u[i, 0] * (2 * pad + 1)) - pad, int(u[i, 1] * (2 * pad + 1)) - pad
        for row in range(h):
            for column in range(w):
                across = w - 1 - column if flip and u[i, 2] < 0.5 else column
                if 0 <= row + down < h and 0 <= across + right < w:
                    out[i, :, row, column] = x[i, :, row + down, across + right]
    return out


def images(n=6, c=3, h=5, w=7):
    return Draws(7).at("images").uniform(torch.empty(n, c, h, w))


@given(
    n=st.integers(0, 5),
    c=st.integers(1, 3),
    h=st.integers(1, 6),
    w=st.integers(1, 6),
    pad=st.integers(0, 7),
    flip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_crop_flip_equals_its_slow_twin(n, c, h, w, pad, flip, seed):
    x, draws = images(n, c, h, w), Draws(seed).at("augment")
    assert torch.equal(CropFlip(pad=pad, flip=flip).apply(x, draws), crop_flip_slowly(x, pad, flip, draws))


@pytest.mark.parametrize("augment", [cls() for cls in AUGMENTS.values()], ids=list(AUGMENTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_augmentation_keeps_shape_type_and_box_and_gives_contiguous_images(augment, dtype):
    x = images().to(dtype).to(memory_format=torch.channels_last)
    kept = x.clone()
    out = augment.apply(x, Draws(0))
    assert out.shape == x.shape and out.dtype == dtype and out.is_contiguous()
    assert out.min() >= 0 and out.max() <= 1
    assert torch.equal(x, kept)


@pytest.mark.parametrize("augment", [cls() for cls in AUGMENTS.values()], ids=list(AUGMENTS))
def test_every_augmentation_is_addressed_and_leaves_the_global_generator_alone(augment):
    x, before = images(), torch.get_rng_state()
    assert torch.equal(augment.apply(x, Draws(0).at("a")), augment.apply(x, Draws(0).at("a")))
    assert torch.equal(before, torch.get_rng_state())


def test_crop_flip_differs_by_address():
    x = images(n=32)
    assert not torch.equal(CropFlip().apply(x, Draws(0).at(1)), CropFlip().apply(x, Draws(0).at(2)))


def test_crop_flip_per_example_does_not_depend_on_neighbours():
    x, draws, rows = images(), Draws(0).at("augment"), torch.arange(10, 16)
    together = CropFlip().apply(x, draws.per_example(rows))
    alone = CropFlip().apply(x[2:3], draws.per_example(rows[2:3]))
    assert torch.equal(together[2:3], alone)


def test_crop_flip_uses_every_place_and_mirrors_about_half_of_the_images():
    n, pad = 4000, 2
    x = torch.zeros(n, 1, 7, 7)
    x[:, 0, 3, 3], x[:, 0, 3, 4] = 1.0, 0.5
    out = CropFlip(pad=pad).apply(x, Draws(0)).flatten(1)
    places = out.argmax(1)
    mirrored = out.gather(1, (places - 1)[:, None]).squeeze(1) == 0.5
    assert abs(mirrored.float().mean() - 0.5) < 0.03
    counts = torch.bincount(places, minlength=49).view(7, 7)[1:6, 1:6]
    assert counts.sum() == n and counts.min() > 0.6 * n / 25 and counts.max() < 1.4 * n / 25


def test_without_padding_and_mirror_nothing_moves():
    assert torch.equal(CropFlip(pad=0, flip=False).apply(images(), Draws(0)), images())


def test_no_augmentation_gives_the_images_themselves():
    x = images()
    assert NoAugment().apply(x, Draws(0)) is x


@pytest.mark.parametrize("wrong", [{"pad": -1}, {"pad": "4"}, {"flip": 1}, {"padding": 4}])
def test_wrong_fields_are_refused(wrong):
    with pytest.raises(ValueError):
        CropFlip(**wrong)
