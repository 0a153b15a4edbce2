"""Image files that are not what they are called, or of absurd shapes, and the end of a decoding process."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from allrounder.data import Folder
from allrounder.data.streaming.decode import END_REQUEST, DecodeSpec, serve
from tests.support.pictures import ROOT, noise, save, write_animals

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when the program is started that draws PostScript images."""
    trace, programs = tmp_path / "started", tmp_path / "programs"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return trace


def test_pillow_with_all_formats_starts_ghostscript(ghostscript: Path):
    with pytest.raises(OSError), Image.open(io.BytesIO(EPS)) as image:
        image.load()
    assert ghostscript.exists()


def test_postscript_named_as_image_starts_no_program(tmp_path: Path, ghostscript: Path):
    (tmp_path / "x.png").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"x\.png: cannot be read as an image"):
        DecodeSpec(6, 6).decode(str(tmp_path / "x.png"))
    write_animals(tmp_path / "pets")
    (tmp_path / "pets" / "train" / "a-cat" / "0.png").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"0\.png: cannot be read as an image"):
        Folder(path=str(tmp_path / "pets"), workers=0).load()
    assert not ghostscript.exists()


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif", "tiff", "ppm"])
def test_accepted_formats_are_decoded(tmp_path: Path, suffix: str):
    path = save(tmp_path / f"x.{suffix}", noise(0))
    assert DecodeSpec(6, 6).decode(str(path)).shape == (3, 6, 6)


@pytest.mark.parametrize("size", [(60_000, 1), (1, 51)])
def test_extreme_aspect_ratio_is_refused(tmp_path: Path, size: tuple[int, int]):
    Image.new("L", size).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match=rf"x\.png: is {size[0]}x{size[1]}, expected at most 50 times as"):
        DecodeSpec(224, 224, resize=256).decode(str(tmp_path / "x.png"))
    Image.new("L", (50, 1)).save(tmp_path / "y.png")
    assert DecodeSpec(4, 4, resize=5).decode(str(tmp_path / "y.png")).shape == (3, 4, 4)


def test_empty_request_ends_the_decoder():
    message = b'{"spec": {"height": 6, "width": 6}, "paths": [], "views": [null]}'
    request, responses = len(message).to_bytes(4, "big") + message, io.BytesIO()
    inspect.unwrap(serve)(io.BytesIO(request + END_REQUEST + request), responses)
    assert responses.getvalue() == b"\x01" + bytes(8)


FORKED = """
import os, sys, time, torch
from allrounder.data import Folder
from allrounder.data.streaming import decoder_pool
decoder_pool.SHUTDOWN_SECONDS = 600
split = Folder(path=sys.argv[1], workers=1).load().train
split.fetch(torch.arange(24))
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
split.pool.close()
os.kill(child, 9)
os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_fork_that_holds_the_pipes_does_not_delay_close(tmp_path: Path):
    write_animals(tmp_path, train=12)
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)  # waiting would take 600
