from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from allrounder.data.augment import (
    AUGMENTS,
    Augment,
    Chain,
    ColorJitter,
    CropFlip,
    Cutout,
    NoAugment,
    ResizedCrop,
)
from allrounder.rng import Rng
from allrounder.types import Batch
from tests.reference import augment as reference

FIELDS: dict[str, dict[str, Any]] = {
    "cutout": {"size": 3},
    "color-jitter": {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.4},
    "chain": {"steps": (ResizedCrop(), ColorJitter(), CropFlip(pad=1))},
}
EVERY = {kind: cls(**FIELDS.get(kind, {})) for kind, cls in AUGMENTS.items()}
ALONE = {kind: augment for kind, augment in EVERY.items() if not augment.mixes_labels}
every = pytest.mark.parametrize("augment", EVERY.values(), ids=list(EVERY))


def images(n=6, c=3, h=5, w=7):
    return Rng(7).fold_in("images").uniform(torch.empty(n, c, h, w))


def batch(x: Tensor | None = None) -> Batch:
    x = images() if x is None else x
    return Batch(x, torch.arange(len(x)) % 3, torch.arange(len(x)) + 10, 0.1)


def changed(augment: Augment, x: Tensor, rng: Rng) -> Tensor:
    return augment.apply(batch(x), rng).x


def numbers(rng: Rng, n: int, count: int) -> Any:
    return rng.uniform(torch.empty(n, count, dtype=torch.float64)).tolist()


SHAPES = {
    "n": st.integers(0, 4),
    "c": st.sampled_from([1, 3]),
    "h": st.integers(1, 6),
    "w": st.integers(1, 6),
}


@given(**SHAPES, pad=st.integers(0, 7), flip=st.booleans(), seed=st.integers(0, 99), reflect=st.booleans())
def test_crop_flip_equals_reference(n, c, h, w, pad, flip, seed, reflect):
    x, rng = images(n, c, h, w), Rng(seed).fold_in("augment")
    pad = min(pad, h - 1, w - 1) if reflect else pad
    augment = CropFlip(pad=pad, flip=flip, padding="reflect" if reflect else "zero")
    assert torch.equal(
        changed(augment, x, rng), reference.crop_flip(x, numbers(rng, n, 3), pad, flip, reflect)
    )


@settings(max_examples=30)
@given(
    **SHAPES,
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted).map(tuple),
    flip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_resized_crop_equals_reference(n, c, h, w, scale, ratio, flip, seed):
    x, rng = images(n, c, h, w), Rng(seed)
    augmented = changed(ResizedCrop(scale=scale, ratio=ratio, flip=flip), x, rng)
    expected = reference.resized_crop(x, numbers(rng, n, 5), scale, ratio, flip)
    assert torch.allclose(augmented, expected, rtol=0, atol=1e-6)


@given(**SHAPES, size=st.integers(0, 9), seed=st.integers(0, 99))
def test_cutout_equals_reference(n, c, h, w, size, seed):
    x, rng = images(n, c, h, w), Rng(seed)
    assert torch.equal(changed(Cutout(size=size), x, rng), reference.cutout(x, numbers(rng, n, 2), size))


@given(**SHAPES, spread=st.tuples(*[st.floats(0, 2)] * 3), hue=st.floats(0, 0.5), seed=st.integers(0, 99))
def test_color_jitter_equals_reference(n, c, h, w, spread, hue, seed):
    x, rng = images(n, c, h, w), Rng(seed)
    brightness, contrast, saturation = spread
    augment = ColorJitter(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    expected = reference.color_jitter(x, numbers(rng, n, 4), brightness, contrast, saturation, hue)
    assert torch.allclose(changed(augment, x, rng), expected, rtol=0, atol=2e-6)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_augmentation_keeps_shape_dtype_and_range_and_is_contiguous(augment, dtype):
    x = images().to(dtype).to(memory_format=torch.channels_last)
    x[0], x[1] = 0, 1  # the corners of the box
    original, source = x.clone(), batch(x)
    augmented = augment.apply(source, Rng(0))
    out = augmented.x
    assert out.shape == x.shape and out.dtype == dtype and out.is_contiguous()
    assert out.min() >= 0 and out.max() <= 1
    assert torch.equal(x, original)
    assert torch.equal(augmented.y, source.y) and torch.equal(augmented.index, source.index)
    assert augmented.label_smoothing == 0.1 and (augmented.partner is not None) == augment.mixes_labels


@pytest.mark.parametrize("kind", ALONE)
@given(n=st.integers(0, 5), h=st.integers(2, 9), w=st.integers(2, 9), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_augmentation_accepts_any_size_and_one_channel(kind, n, h, w, seed):
    x = images(n, 1, h, w)
    out = changed(ALONE[kind], x, Rng(seed))
    assert out.shape == x.shape and bool(((out >= 0) & (out <= 1)).all())


@every
def test_augmentation_depends_on_address_and_not_on_global_generator(augment):
    x, before = images(), torch.get_rng_state()
    once, again, other = (changed(augment, x, Rng(0).fold_in(at)) for at in ("a", "a", "b"))
    assert torch.equal(once, again)
    assert torch.equal(once, other) == isinstance(augment, NoAugment)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("augment", ALONE.values(), ids=list(ALONE))
def test_augmentation_per_example_does_not_depend_on_neighbours(augment):
    x, rng, rows = images(), Rng(0).fold_in("augment"), torch.arange(10, 16)
    together = changed(augment, x, rng.per_example(rows))
    alone = changed(augment, x[2:3], rng.per_example(rows[2:3]))
    assert torch.equal(together[2:3], alone)


NEUTRAL: list[Augment] = [
    CropFlip(pad=0, flip=False),
    CropFlip(pad=0, flip=False, padding="reflect"),
    ResizedCrop(scale=(1, 1), ratio=(1, 1), flip=False),
    Cutout(size=0),
    ColorJitter(brightness=0, contrast=0, saturation=0, hue=0),
    ColorJitter(brightness=0, contrast=1e-300, saturation=1e-300, hue=1e-300),
    Chain(steps=(NoAugment(), Cutout(size=0))),
    NoAugment(),
]


@pytest.mark.parametrize("augment", NEUTRAL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_neutral_settings_change_no_bit(augment, dtype):
    x = images(n=20).to(dtype)
    assert torch.equal(changed(augment, x, Rng(0)), x)


def test_crop_flip_positions_are_uniform_and_half_is_flipped():
    n, pad = 4000, 2
    x = torch.zeros(n, 1, 7, 7)
    x[:, 0, 3, 3], x[:, 0, 3, 4] = 1.0, 0.5
    out = changed(CropFlip(pad=pad), x, Rng(0)).flatten(1)
    places = out.argmax(1)
    mirrored = out.gather(1, (places - 1)[:, None]).squeeze(1) == 0.5
    assert abs(mirrored.float().mean() - 0.5) < 0.03
    counts = torch.bincount(places, minlength=49).view(7, 7)[1:6, 1:6]
    assert counts.sum() == n and counts.min() > 0.6 * n / 25 and counts.max() < 1.4 * n / 25


def test_resized_crop_has_requested_area_and_aspect_ratio():
    """On a slope, the difference between neighbours is the share of the side that is shown."""
    n, size = 500, 40
    slope = torch.linspace(0, 1, size, dtype=torch.float64)
    x = torch.stack([slope[:, None].expand(size, size), slope.expand(size, size)]).expand(n, 2, size, size)
    out = changed(ResizedCrop(scale=(0.3, 0.5), ratio=(0.8, 1.25), flip=False), x, Rng(0))
    middle = slice(size // 2, size // 2 + 2)
    tall = out[:, 0, middle, 0].diff(dim=1).flatten() * (size - 1)
    wide = out[:, 1, 0, middle].diff(dim=1).flatten() * (size - 1)
    area, aspect = tall * wide, wide / tall
    assert area.min() >= 0.3 - 1e-9 and area.max() <= 0.5 + 1e-9 and abs(area.mean() - 0.4) < 0.01
    assert aspect.min() >= 0.8 - 1e-9 and aspect.max() <= 1.25 + 1e-9 and abs(aspect.log().mean()) < 0.02


def test_no_augment_returns_the_same_tensor():
    x = images()
    assert changed(NoAugment(), x, Rng(0)) is x


def test_chain_applies_steps_in_order_with_independent_draws():
    x, rng = images(), Rng(3)
    one, two = CropFlip(pad=2), Cutout(size=3)
    by_hand = changed(two, changed(one, x, rng.fold_in("step", 0)), rng.fold_in("step", 1))
    assert torch.equal(changed(Chain(steps=(one, two)), x, rng), by_hand)
    twice = changed(Chain(steps=(two, two)), torch.ones(50, 1, 30, 30), rng)
    assert ((twice == 0).flatten(1).sum(1) > 9).sum() > 30


def test_hue_rotates_colours_about_the_grey_axis():
    red, x = torch.tensor([0.75, 0.25, 0.25]), torch.zeros(400, 3, 1, 1)
    x[:] = red.view(3, 1, 1)
    out = changed(ColorJitter(brightness=0, contrast=0, saturation=0, hue=0.5), x, Rng(0)).flatten(1)
    assert torch.allclose(out.mean(1), red.mean().expand(400), atol=1e-6)
    assert torch.allclose((out - red.mean()).norm(dim=1), (red - red.mean()).norm().expand(400), atol=1e-5)
    angle = torch.atan2((out[:, 1] - out[:, 2]) / math.sqrt(3) * math.sqrt(1.5), (out[:, 0] - red.mean()))
    assert angle.min() < -2.8 and angle.max() > 2.8 and abs(angle.mean()) < 0.3


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        *[(CropFlip, wrong) for wrong in ({"pad": -1}, {"pad": "4"}, {"flip": 1}, {"padding": 4})],
        *[(ResizedCrop, {"scale": wrong}) for wrong in ((0, 1), (0.5, 1.1), (0.5, 0.4), (0.5,))],
        *[(ResizedCrop, {"ratio": wrong}) for wrong in ((0, 1), (2, 1), "1")],
        (Cutout, {"size": -1}),
        *[(ColorJitter, wrong) for wrong in ({"brightness": -0.1}, {"hue": 0.6}, {"contrast": True})],
        (Chain, {"steps": ()}),
        (Chain, {"steps": ({"kind": "chain", "steps": ()},)}),
        (Chain, {"steps": ({"kind": "mixup"}, {"kind": "cutout"})}),
    ],
)
def test_wrong_fields_are_refused(cls, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cls(**wrong)


def test_settings_that_do_not_fit_the_images_are_refused():
    with pytest.raises(ValueError, match=r"got pad 5 for images of 5 pixels.*choose a smaller pad"):
        changed(CropFlip(pad=5, padding="reflect"), images(), Rng(0))
    with pytest.raises(ValueError, match=r"got images with 4 channels, expected 1 .grey. or 3"):
        changed(ColorJitter(), images(c=4), Rng(0))
