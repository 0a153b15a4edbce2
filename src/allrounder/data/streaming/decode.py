"""Decode image files to pixels. Run as a program, this module serves decode requests on standard input.

It imports nothing of the package, so that decoder processes start quickly and need little memory.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

PIL_MODES = {1: "L", 3: "RGB"}
"""Pillow's mode for a number of channels."""
GREY16_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of 16-bit greyscale images."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Accepted formats, whatever the file name says: Pillow's decoders of other formats may start programs."""
MAX_ASPECT_RATIO = 50
"""Greatest accepted ratio of the sides: resizing a narrower image could fill the memory."""
MAX_FILE_BYTES = 2**30
"""Size of an image file; some decoders read the whole file first."""
MAX_PIXELS = 89_478_485
"""Pixels of an image: as many as Pillow reads without a warning."""
MAX_CROP_ATTEMPTS = 10
"""Attempts to draw a crop that fits into the image before the largest central one is taken, as published."""
DRAWS_PER_CROP = 2 * MAX_CROP_ATTEMPTS + 3
"""Random numbers of a crop: area and aspect ratio of every attempt, then left, top and flip."""
END_REQUEST = bytes(4)
"""A request of length 0; it ends the process."""
DONE = b"\x01"
FAILED = b"\x00"


@final
@dataclass(frozen=True)
class Crops:
    """Random crops of a batch: for every image one part of the whole image, resized to one size.

    The same as torchvision's RandomResizedCrop, with which networks for ImageNet are trained: the area is
    uniform in `scale`, the aspect ratio log-uniform in `ratio`, a crop that does not fit is drawn again, and
    the part is resized with Pillow's bilinear filter, which averages when it shrinks.
    """

    height: int
    width: int
    scale: tuple[float, float]
    """Smallest and largest area, as a share of the whole image."""
    ratio: tuple[float, float]
    """Smallest and largest aspect ratio (width / height) of the part, relative to that of the result."""
    flip: bool
    """Flip left to right with probability one half."""
    draws: tuple[tuple[float, ...], ...] = field(repr=False)
    """DRAWS_PER_CROP numbers in [0, 1) for every image."""

    def select(self, rows: Sequence[int]) -> Crops:
        """Return the crops of some images of the batch."""
        return replace(self, draws=tuple(self.draws[row] for row in rows))

    def cut(self, image: Image.Image, row: int) -> Image.Image:
        """Cut the crop of the image at position `row` of the batch."""
        part = image.crop(self.box(image.width, image.height, row))
        crop = part.resize((self.width, self.height), Image.Resampling.BILINEAR)
        is_flipped = self.flip and self.draws[row][-1] < 0.5
        return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_flipped else crop

    def box(self, width: int, height: int, row: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the part that is cut from an image of this size."""
        *attempts, left, top, _ = self.draws[row]
        low, high = (end * self.width / self.height for end in self.ratio)
        for u, v in zip(attempts[::2], attempts[1::2], strict=True):
            area = width * height * (self.scale[0] + u * (self.scale[1] - self.scale[0]))
            aspect = math.exp(math.log(low) + v * (math.log(high) - math.log(low)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                x, y = int(left * (width - w + 1)), int(top * (height - h + 1))
                return x, y, x + w, y + h
        w, h = min(width, max(1, round(height * high))), min(height, max(1, round(width / low)))
        x, y = (width - w) // 2, (height - h) // 2
        return x, y, x + w, y + h


@final
@dataclass(frozen=True)
class DecodeSpec:
    """How the images of a dataset are decoded: to uint8 arrays of one shape.

    With `resize`, the shorter side is resized to this length (bilinear; the longer side in proportion,
    rounded down) and the centre is cropped, as usual for ImageNet. Without it, every image must have the
    target size.

    Greyscale, palette and CMYK images are converted to RGB, or all images to greyscale with one channel.
    16-bit greyscale is scaled to 8 bits. Transparency is dropped and the colours are kept; of several frames
    the first is used. The EXIF orientation is applied only with `upright`.
    """

    height: int
    width: int
    channels: int = 3
    resize: int | None = None
    upright: bool = False

    def decode(self, path: str) -> NDArray[np.uint8]:
        """Decode a file to (c, h, w). Raises a ValueError that begins with the path."""
        return self.decode_views(path, [None], 0)[0]

    def decode_views(self, path: str, views: Sequence[Crops | None], row: int) -> list[NDArray[np.uint8]]:
        """Decode a file once and return views of it, each (c, h, w): the crop of the image at position `row`
        of a batch, or for None the resized centre."""
        # Pillow's decoders raise many kinds of errors for damaged images.
        try:
            with open_image(path) as file:
                image = convert_mode(ImageOps.exif_transpose(file) if self.upright else file, self.channels)
                self._check_size(image)
                seen = [
                    self._resize_and_crop(image) if view is None else view.cut(image, row) for view in views
                ]
                return [np.ascontiguousarray(to_chw(view)) for view in seen]
        except FileNotFoundError:
            raise ValueError(f"{path}: is gone since the folder was listed; put it back") from None
        except UnusableImage as error:
            raise ValueError(f"{path}: {error}") from None
        except Exception as error:
            raise ValueError(
                f"{path}: cannot be read as an image ({type(error).__name__}: {error}); "
                "get the file again, or take it out of the folder"
            ) from None

    def _check_size(self, image: Image.Image) -> None:
        """Raise UnusableImage for an image that cannot be brought to the target size."""
        width, height = image.size
        if self.resize is None and (height, width) != (self.height, self.width):
            raise UnusableImage(
                f"is {width}x{height}, expected {self.width}x{self.height} as the others; set size to "
                "resize all images"
            )
        if self.resize is not None and max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            raise UnusableImage(
                f"is {width}x{height}, expected at most {MAX_ASPECT_RATIO} times as long as wide; crop it, "
                "or take it out of the folder"
            )

    def _resize_and_crop(self, image: Image.Image) -> Image.Image:
        """Resize an image and crop its centre."""
        if self.resize is None:
            return image
        width, height = image.size
        short = min(width, height)
        if short != self.resize:
            scaled = (self.resize * width // short, self.resize * height // short)
            image = image.resize(scaled, Image.Resampling.BILINEAR)
        left = round((image.width - self.width) / 2)
        top = round((image.height - self.height) / 2)
        return image.crop((left, top, left + self.width, top + self.height))


@contextmanager
def open_image(path: str) -> Generator[Image.Image]:
    """Open an image file of an accepted format; its pixels are decoded when they are used."""
    with warnings.catch_warnings():
        # Pillow warns of damaged EXIF data, which ImageNet often has; the pixels are not affected.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        if os.path.getsize(path) > MAX_FILE_BYTES:
            raise UnusableImage(f"has more than {MAX_FILE_BYTES:,} bytes; make it smaller, or take it out")
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise UnusableImage(
                    f"is {width}x{height}, expected at most {MAX_PIXELS} pixels; make it smaller, or take it "
                    "out of the folder"
                )
            yield image


@final
class UnusableImage(ValueError):
    """The image can be decoded, but not used."""


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image of any mode to RGB, or to greyscale."""
    if image.mode == PIL_MODES[channels]:
        return image
    if image.mode in GREY16_MODES:
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise UnusableImage(
                f"has levels from {levels.min()} to {levels.max()}, expected at most 16 bits; convert it"
            )
        image = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode == "F":
        raise UnusableImage("has floating-point pixels of unknown range; convert it to 8 bits")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(PIL_MODES[channels])


def to_chw(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels of a greyscale or RGB image, (c, h, w)."""
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Answer decode requests until an empty request, or until the input ends because the parent is gone."""
    while len(head := requests.read(4)) == 4 and head != END_REQUEST:
        request = cast(dict[str, Any], json.loads(requests.read(int.from_bytes(head, "big"))))
        try:
            spec = DecodeSpec(**request["spec"])
            views = [None if view is None else Crops(**view) for view in request["views"]]
            images = (spec.decode_views(path, views, row) for row, path in enumerate(request["paths"]))
            body = b"".join(pixels.tobytes() for seen in images for pixels in seen)
            status = DONE
        except Exception as error:
            body = str(error).encode(errors="backslashreplace")
            status = FAILED
        responses.write(status + len(body).to_bytes(8, "big"))
        responses.write(body)
        responses.flush()


if __name__ == "__main__":
    # Standard output becomes standard error, so that nothing a library prints is taken for pixels.
    channel = os.dup(1)
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, os.fdopen(channel, "wb"))
    except BrokenPipeError:
        os._exit(0)
