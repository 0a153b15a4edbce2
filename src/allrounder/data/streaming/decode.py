"""Decode image files to pixels. Run as a program, this module serves decode requests on standard input.

It imports nothing of the package, so that decoder processes start quickly and need little memory.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
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
MAX_PIXELS = 89_478_485
"""Pixels of an image: as many as Pillow reads without a warning."""
END_REQUEST = bytes(4)
"""A request of length 0; it ends the process."""
DONE = b"\x01"
FAILED = b"\x00"


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
        # Pillow's decoders raise many kinds of errors for damaged images.
        try:
            with open_image(path) as image:
                oriented = ImageOps.exif_transpose(image) if self.upright else image
                pixels = to_chw(self._resize_and_crop(oriented))
        except FileNotFoundError:
            raise ValueError(f"{path}: is gone since the folder was listed; put it back") from None
        except UnusableImage as error:
            raise ValueError(f"{path}: {error}") from None
        except Exception as error:
            raise ValueError(
                f"{path}: cannot be read as an image ({type(error).__name__}: {error}); "
                "get the file again, or take it out of the folder"
            ) from None
        return np.ascontiguousarray(pixels)

    def _resize_and_crop(self, image: Image.Image) -> Image.Image:
        """Convert an image to the target mode and size."""
        image = convert_mode(image, self.channels)
        width, height = image.size
        if self.resize is None:
            if (height, width) != (self.height, self.width):
                raise UnusableImage(
                    f"is {width}x{height}, expected {self.width}x{self.height} as the others; set size to "
                    "resize all images"
                )
            return image
        short = min(width, height)
        if max(width, height) > MAX_ASPECT_RATIO * short:
            raise UnusableImage(
                f"is {width}x{height}, expected at most {MAX_ASPECT_RATIO} times as long as wide; crop it, "
                "or take it out of the folder"
            )
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
            body = b"".join(spec.decode(path).tobytes() for path in request["paths"])
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
