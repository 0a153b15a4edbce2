"""From image files to bytes; run as a program, a process that is asked for files and answers with pixels.

It imports nothing of the package, so that such a process starts at once and stays small.
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

MODES = {1: "L", 3: "RGB"}
"""What Pillow calls images of so many channels."""
WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""What Pillow calls grey images of 16 bits."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What image files may be, whatever they are called: decoders of other formats start programs."""
THINNEST = 50
"""So many times longer than wide an image may be at most; brought to a size, it would fill the memory."""
END = bytes(4)
"""A question of no length: the last one."""
DONE, FAILED = b"\x01", b"\x00"


@final
@dataclass(frozen=True)
class Reading:
    """How the images of a dataset are read: all come out as bytes of one shape.

    With `resize`, the shorter side becomes so many pixels (bilinear, and the longer side in proportion,
    rounded down), and the middle is cut out: what networks on ImageNet are measured with. Without it, an
    image must have the size already.

    Grey, palette and CMYK images become RGB, or all become grey with one channel. Grey images of 16 bits are
    scaled to 8. Of images with transparency the colours are taken and the transparency is dropped; of
    several frames, the first. The EXIF tag that says how a camera was held is followed only when `upright`.
    """

    height: int
    width: int
    channels: int = 3
    resize: int | None = None
    upright: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what is read."""
        return self.channels, self.height, self.width

    def read(self, path: str) -> NDArray[np.uint8]:
        """The pixels of a file, (c, h, w); what is wrong is said with the name of the file."""
        # Pillow's decoders have errors of their own for damaged images.
        try:
            with opened(path) as image:
                pixels = as_bytes(self._placed(ImageOps.exif_transpose(image) if self.upright else image))
        except FileNotFoundError:
            raise ValueError(f"{path}: is gone since the folder was listed; put it back") from None
        except Unsuited as error:
            raise ValueError(f"{path}: {error}") from None
        except Exception as error:
            raise ValueError(
                f"{path}: cannot be read as an image ({type(error).__name__}: {error}); "
                "get the file again, or take it out of the folder"
            ) from None
        return np.ascontiguousarray(pixels)

    def _placed(self, image: Image.Image) -> Image.Image:
        """The image in the right colours and size."""
        image = coloured(image, self.channels)
        width, height = image.size
        if self.resize is None:
            if (height, width) != (self.height, self.width):
                raise Unsuited(
                    f"is {width}x{height}, expected {self.width}x{self.height} as the others; set size, "
                    "the pixels of a side that all are brought to"
                )
            return image
        short = min(width, height)
        if max(width, height) > THINNEST * short:
            raise Unsuited(
                f"is {width}x{height}, expected at most {THINNEST} times as long as wide; cut it, "
                "or take it out of the folder"
            )
        if short != self.resize:
            scaled = (self.resize * width // short, self.resize * height // short)
            image = image.resize(scaled, Image.Resampling.BILINEAR)
        left, top = round((image.width - self.width) / 2), round((image.height - self.height) / 2)
        return image.crop((left, top, left + self.width, top + self.height))


@contextmanager
def opened(path: str) -> Generator[Image.Image]:
    """An image file while it is read."""
    with warnings.catch_warnings():
        # Damaged notes of a camera, of which ImageNet has many, do not touch the pixels.
        warnings.simplefilter("ignore", UserWarning)
        with Image.open(path, formats=FORMATS) as image:
            yield image


@final
class Unsuited(ValueError):
    """An image that can be decoded, but not used."""


def coloured(image: Image.Image, channels: int) -> Image.Image:
    """An image of any mode as RGB, or as grey."""
    if image.mode == MODES[channels]:
        return image
    if image.mode in WIDE:
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise Unsuited(
                f"has levels from {levels.min()} to {levels.max()}, expected at most 16 bits; convert it"
            )
        image = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode == "F":
        raise Unsuited("has floating-point pixels, whose range is not known; convert it to 8 bits")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(MODES[channels])


def as_bytes(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels of a grey or RGB image, (c, h, w)."""
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the question is empty, or nobody asks any more because the one who did is gone."""
    while len(head := questions.read(4)) == 4 and head != END:
        asked = cast(dict[str, Any], json.loads(questions.read(int.from_bytes(head, "big"))))
        try:
            reading = Reading(**asked["reading"])
            sign, body = DONE, b"".join(reading.read(path).tobytes() for path in asked["paths"])
        except Exception as error:
            sign, body = FAILED, str(error).encode(errors="backslashreplace")
        answers.write(sign + len(body).to_bytes(8, "big"))
        answers.write(body)
        answers.flush()


if __name__ == "__main__":
    # What a library may print must not be taken for pixels.
    channel = os.dup(1)
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, os.fdopen(channel, "wb"))
    except BrokenPipeError:
        os._exit(0)
