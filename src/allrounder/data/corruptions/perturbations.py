"""The perturbation sequences of CIFAR-10-P: an image that changes a little from frame to frame.

The protocol is that of the published sets: 31 frames (motion_blur 21, translate 16) at the easiest
difficulty. The noise sequences start with the image itself and add independent noise to it in every frame, so
frames are compared with the first one. The others change step by step, so each frame is compared with the one
before.

Geometric perturbations act about the centre of the image, and pixels from beyond its edges are black. Lengths
in pixels are meant for 32x32 images and are not scaled for other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from allrounder.data.corruptions import digital, noise
from allrounder.data.corruptions.base import (
    FloatArray,
    Uint8Array,
    arange,
    check_name,
    normal,
    rng_per_image,
    round_to_uint8,
    to_float,
    to_uint8,
)
from allrounder.data.corruptions.filters import gaussian_filter, motion_filter, sample_bilinear
from allrounder.data.corruptions.spatter import add_water
from allrounder.data.corruptions.weather import blend_snow, make_snowflakes
from allrounder.rng import Rng

NUM_FRAMES = 31


@final
@dataclass(frozen=True)
class Perturbation:
    """A function that yields the frames of a batch of images one after the other, and their number."""

    make_frames: Callable[[Uint8Array, Rng], Iterator[Uint8Array]]
    num_frames: int = NUM_FRAMES


def gaussian_noise(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Yield the image, then the image with Gaussian noise of scale 0.02."""
    yield x
    for frame in range(1, NUM_FRAMES):
        yield noise.gaussian_noise(x, 0.02, rng.fold_in(frame))


def shot_noise(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Yield the image, then the image in Poisson counts; white is 700 photons."""
    yield x
    for frame in range(1, NUM_FRAMES):
        yield noise.shot_noise(x, 700.0, rng.fold_in(frame))


def speckle_noise(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Yield the image, then the image with noise of scale 0.05 in proportion to the pixel value."""
    yield x
    for frame in range(1, NUM_FRAMES):
        yield noise.speckle_noise(x, 0.05, rng.fold_in(frame))


def gaussian_blur(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Blur with a Gaussian whose deviation grows from 0.3 to 0.75 pixels."""
    for frame in range(NUM_FRAMES):
        yield to_uint8(gaussian_filter(to_float(x), 0.3 + 0.015 * frame, truncate=7.0))


def motion_blur(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Blur along a line that turns by 9 degrees per frame, through half a circle."""
    for frame in range(21):
        yield round_to_uint8(motion_filter(to_float(x), 6.0, 1.8, [(frame - 20) * 9.0] * len(x)))


def zoom_blur(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Average the image and all its enlargements so far, each by another 0.4 percent."""
    yield x
    pixels = to_float(x)
    total = pixels
    for frame in range(1, NUM_FRAMES):
        total = total + _rescale(pixels, 1 + 0.004 * frame)
        yield to_uint8(total / (frame + 1))


def snow(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Add the same snowflakes in every frame, falling at an angle that turns by 4 degrees per frame."""
    flakes = make_snowflakes(normal(rng, (*x.shape[:3], 1), 0.05, 0.3), 2.0, 0.5)
    for frame in range(NUM_FRAMES):
        angles = [frame * 4.0 - 150.0] * len(x)
        yield blend_snow(to_float(x), motion_filter(flakes, 10.0, 2.0, angles), 0.85)


def spatter(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Add the same drops of water in every frame, which run down by 0.8 pixels per frame and blur."""
    layer = gaussian_filter(normal(rng, (*x.shape[:3], 1), 0.6, 0.265), 1.75)
    layer = np.where(layer < 0.7, 0, layer)
    for _ in range(NUM_FRAMES):
        yield add_water(x, layer, 0.6)
        above = np.pad(layer[:, :-1], [(0, 0), (1, 0), (0, 0), (0, 0)])
        layer = 0.2 * layer + 0.8 * above


def brightness(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Change the value (HSV) from -0.225 to +0.225."""
    for frame in range(NUM_FRAMES):
        yield digital.brightness(x, (frame - 15) * 1.5 / 100, rng)


def translate(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Move the image from 7 pixels left to 8 pixels right."""
    padded = np.pad(x, [(0, 0), (0, 0), (8, 7), (0, 0)])
    for frame in range(16):
        yield padded[:, :, 15 - frame : 15 - frame + x.shape[2]]


def rotate(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Rotate the image clockwise from -15 to 15 degrees."""
    rows, columns = _centred_grid(x)
    for frame in range(NUM_FRAMES):
        angle = math.radians(frame - 15.0)
        cos, sin = math.cos(angle), math.sin(angle)
        turned = cos * rows - sin * columns, cos * columns + sin * rows
        yield round_to_uint8(_sample_centred(to_float(x), *turned))


def tilt(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Rotate the image about both axes from -11.25 to 11.25 degrees, seen from the distance of its
    diagonal."""
    rows, columns = _centred_grid(x)
    diagonal = math.hypot(*x.shape[1:3])
    for frame in range(NUM_FRAMES):
        angle = math.radians(0.75 * (frame - 15))
        cos, sin = math.cos(angle), math.sin(angle)
        # Maps (column, row, 1) of a point to its projection (column, row, 1) times its distance.
        projection = np.array(
            [
                [diagonal * cos, 0, -diagonal * sin],
                [-diagonal * sin * sin, diagonal * cos, -diagonal * sin * cos],
                [cos * sin, sin, cos * cos + diagonal],
            ]
        )
        inverse = np.linalg.inv(projection)
        across, down, distance = (row[0] * columns + row[1] * rows + row[2] for row in inverse)
        yield round_to_uint8(_sample_centred(to_float(x), down / distance, across / distance))


def scale(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Scale the image from 70 to 130 percent of its size."""
    for frame in range(NUM_FRAMES):
        yield round_to_uint8(_rescale(to_float(x), (70 + 2 * frame) / 100))


def shear(x: Uint8Array, rng: Rng) -> Iterator[Uint8Array]:
    """Tilt the columns of the image from -15 to 15 degrees, keeping their length, as torchvision did when the
    published sets were made; today it keeps the height of the image instead."""
    rows, columns = _centred_grid(x)
    for frame in range(NUM_FRAMES):
        angle = math.radians(frame - 15.0)
        source = rows / math.cos(angle), columns + math.tan(angle) * rows
        yield round_to_uint8(_sample_centred(to_float(x), *source))


def _centred_grid(x: Uint8Array | FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the row and the column of every pixel, measured from the centre of the image."""
    h, w = x.shape[1:3]
    rows, columns = arange(h) - (h - 1) / 2, arange(w) - (w - 1) / 2
    return np.repeat(rows[:, None], w, axis=1), np.repeat(columns[None], h, axis=0)


def _rescale(pixels: FloatArray, factor: float) -> FloatArray:
    """Scale images about their centre by a factor."""
    rows, columns = _centred_grid(pixels)
    return _sample_centred(pixels, rows / factor, columns / factor)


def _sample_centred(pixels: FloatArray, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Sample images at coordinates measured from their centre."""
    h, w = pixels.shape[1:3]
    return sample_bilinear(pixels, rows + (h - 1) / 2, columns + (w - 1) / 2, "black")


PERTURBATIONS: dict[str, Perturbation] = {
    "gaussian_noise": Perturbation(gaussian_noise),
    "shot_noise": Perturbation(shot_noise),
    "motion_blur": Perturbation(motion_blur, 21),
    "zoom_blur": Perturbation(zoom_blur),
    "snow": Perturbation(snow),
    "spatter": Perturbation(spatter),
    "brightness": Perturbation(brightness),
    "translate": Perturbation(translate, 16),
    "rotate": Perturbation(rotate),
    "tilt": Perturbation(tilt),
    "scale": Perturbation(scale),
    "speckle_noise": Perturbation(speckle_noise),
    "gaussian_blur": Perturbation(gaussian_blur),
    "shear": Perturbation(shear),
}
"""The perturbations of the published sets. The authors' program for CIFAR averages over ten of them, without
snow, speckle_noise, gaussian_blur and shear; their paper, on ImageNet, has snow in place of spatter."""


def perturb_sequence(
    images: Uint8Array, perturbation: str, *, seed: int = 0, rows: Sequence[int] | None = None
) -> Uint8Array:
    """Return the frames of uint8 images, (n, frames, h, w, c); arguments have the same meaning as in
    `corrupt`."""
    check_name("perturbation", perturbation, PERTURBATIONS)
    rng = rng_per_image(Rng(seed).fold_in("perturbation", perturbation), images, rows)
    entry = PERTURBATIONS[perturbation]
    frames = np.empty((len(images), entry.num_frames, *images.shape[1:]), np.uint8)
    for i, frame in enumerate(entry.make_frames(images, rng)):
        frames[:, i] = frame
    return frames
