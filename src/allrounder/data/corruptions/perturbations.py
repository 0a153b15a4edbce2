"""Perturbation sequences as in CIFAR-10-P: an image, changed a little from frame to frame.

The protocol of the published sets: 31 frames, of motion_blur 21 and of translate 16, at the easiest
difficulty. The noises begin with the image itself and add noise of one strength to it anew in every frame, so
frames are compared with the first; the others move step by step, so each is compared with the one before.

Geometric ones turn about the middle of the image, and what comes in from beyond its edges is black. Lengths
in pixels are for images of 32x32 and are used as they are at other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch

from allrounder.config.fields import nearest
from allrounder.data.corruptions.base import (
    Bytes,
    Floats,
    as_bytes,
    check_images,
    normal,
    poisson,
    unit,
    upto,
)
from allrounder.data.corruptions.digital import brightened
from allrounder.data.corruptions.filters import sampled, streaked
from allrounder.data.corruptions.weather import snowed, snowflakes
from allrounder.rng import Draws

Frames: TypeAlias = Callable[[Bytes, Draws], Iterator[Bytes]]
LONG = 31


@final
@dataclass(frozen=True)
class Perturbation:
    """How the frames of some images come one after the other, and how many they are."""

    show: Frames
    frames: int = LONG


def gaussian_noise(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """The image, then with noise of 0.02."""
    yield x
    for frame in range(1, LONG):
        yield as_bytes(unit(x) + normal(draws.at(frame), x.shape, scale=0.02))


def shot_noise(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """The image, then in grains of light: white is 700 of them."""
    yield x
    for frame in range(1, LONG):
        yield as_bytes(poisson(draws.at(frame), unit(x) * 700.0) / 700.0)


def motion_blur(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """A line of one length that turns by 9 degrees, through half a circle."""
    for frame in range(21):
        turned = streaked(unit(x), 6.0, 1.8, [(frame - 20) * 9.0] * len(x))
        yield np.rint(255 * turned).astype(np.uint8)


def zoom_blur(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """The mean of the image and its enlargements so far, by 0.4 percent more each."""
    yield x
    pixels = unit(x)
    total = pixels
    for frame in range(1, LONG):
        total = total + _scaled(pixels, 1 + 0.004 * frame)
        yield as_bytes(total / (frame + 1))


def snow(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """The same flakes, which fall at an angle that turns by 4 degrees."""
    flakes = snowflakes(normal(draws, (*x.shape[:3], 1), 0.05, 0.3), 2.0, 0.5)
    for frame in range(LONG):
        yield snowed(unit(x), streaked(flakes, 10.0, 2.0, [frame * 4.0 - 150.0] * len(x)), 0.85)


def brightness(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """From 22.5 percent darker to as much brighter."""
    for frame in range(LONG):
        yield as_bytes(brightened(unit(x), (frame - 15) * 0.015))


def translate(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """From 7 pixels to the left to 8 to the right."""
    for frame in range(16):
        right = frame - 7
        moved = np.zeros_like(x)
        if right < 0:
            moved[:, :, :right] = x[:, :, -right:]
        else:
            moved[:, :, right:] = x[:, :, : x.shape[2] - right]
        yield moved


def rotate(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """From -15 to 15 degrees, clockwise."""
    rows, columns = _centred(x)
    for frame in range(LONG):
        cos, sin = (turn(math.radians(frame - 15.0)) for turn in (math.cos, math.sin))
        yield _placed(unit(x), cos * rows - sin * columns, cos * columns + sin * rows)


def tilt(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """A picture that is turned in space, about both its axes by -11.25 to 11.25 degrees, seen from as far as
    its diagonal is long."""
    rows, columns = _centred(x)
    diagonal = math.hypot(*x.shape[1:3])
    for frame in range(LONG):
        cos, sin = (turn(math.radians(0.75 * (frame - 15))) for turn in (math.cos, math.sin))
        # Columns right, rows down, one: where a point of the picture is seen, times its distance.
        seen = np.array(
            [
                [diagonal * cos, 0, -diagonal * sin],
                [-diagonal * sin * sin, diagonal * cos, -diagonal * sin * cos],
                [cos * sin, sin, cos * cos + diagonal],
            ]
        )
        back = np.linalg.inv(seen)
        across, down, scale = (row[0] * columns + row[1] * rows + row[2] for row in back)
        yield _placed(unit(x), down / scale, across / scale)


def scale(x: Bytes, draws: Draws) -> Iterator[Bytes]:
    """From 70 to 130 percent of the size."""
    for frame in range(LONG):
        yield np.rint(255 * _scaled(unit(x), (70 + 2 * frame) / 100)).astype(np.uint8)


def _centred(x: Bytes | Floats) -> tuple[Floats, Floats]:
    """Rows and columns of every pixel, from the middle of the image."""
    h, w = x.shape[1:3]
    rows, columns = upto(h) - (h - 1) / 2, upto(w) - (w - 1) / 2
    return np.repeat(rows[:, None], w, axis=1), np.repeat(columns[None], h, axis=0)


def _scaled(pixels: Floats, factor: float) -> Floats:
    h, w = pixels.shape[1:3]
    rows, columns = _centred(pixels)
    return sampled(pixels, rows / factor + (h - 1) / 2, columns / factor + (w - 1) / 2, "black")


def _placed(pixels: Floats, rows: Floats, columns: Floats) -> Bytes:
    """The image at places that are given from its middle."""
    h, w = pixels.shape[1:3]
    seen = sampled(pixels, rows + (h - 1) / 2, columns + (w - 1) / 2, "black")
    return np.rint(255 * seen).astype(np.uint8)


PERTURBATIONS: dict[str, Perturbation] = {
    "gaussian_noise": Perturbation(gaussian_noise),
    "shot_noise": Perturbation(shot_noise),
    "motion_blur": Perturbation(motion_blur, 21),
    "zoom_blur": Perturbation(zoom_blur),
    "snow": Perturbation(snow),
    "brightness": Perturbation(brightness),
    "translate": Perturbation(translate, 16),
    "rotate": Perturbation(rotate),
    "tilt": Perturbation(tilt),
    "scale": Perturbation(scale),
}
"""The ten of the paper. The authors' program for CIFAR measures spatter in place of snow."""


def perturb_sequence(
    images: Bytes, perturbation: str, *, seed: int = 0, rows: Sequence[int] | None = None
) -> Bytes:
    """The frames of images, (n, h, w, 1 or 3) to (n, frames, h, w, 1 or 3); `rows` as in `corrupt`."""
    if perturbation not in PERTURBATIONS:
        known = ", ".join(PERTURBATIONS)
        hint = nearest(perturbation, PERTURBATIONS)
        raise ValueError(f"perturbation: got {perturbation!r}, expected one of {known}{hint}")
    check_images(images)
    numbers = range(len(images)) if rows is None else rows
    if len(numbers) != len(images):
        raise ValueError(f"rows: got {len(numbers)} for {len(images)} images, expected one for each")
    chosen = PERTURBATIONS[perturbation]
    frames = np.empty((len(images), chosen.frames, *images.shape[1:]), np.uint8)
    draws = Draws(seed).at("perturbation", perturbation).per_example(torch.tensor(list(numbers)))
    for frame, shown in enumerate(chosen.show(images, draws)):
        frames[:, frame] = shown
    return frames
