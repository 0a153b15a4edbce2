"""The memory and the time that the index of a folder of many small images takes.

    python benchmarks/many_files.py
    python benchmarks/many_files.py --files 20000 --classes 10

The images are hard links to one PPM file (a few, because file systems limit the links of a file), so they
take inodes and no space. They are deleted afterwards. The exit code is 1 above the limit of bytes per file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import torch

from allrounder.data.datasets.folder import Folder

LINKS_PER_FILE = 50_000
TEST_IMAGES = 2
"""Test images of every class."""
MAX_BYTES_PER_FILE = 120
"""Bytes that the index keeps of a file: its name below the folder, and two numbers of 8 bytes."""
PPM = b"P6 2 2 255\n" + bytes(range(12))


def make_images(root: Path, files: int, classes: int) -> None:
    """Create a folder of `files` training images, in equal classes, and a few test images."""
    source = root / "source.ppm"
    for split, per_class in (("train", -(-files // classes)), ("val", TEST_IMAGES)):
        for number in range(classes):
            folder = root / "images" / split / f"class-{number:05d}"
            folder.mkdir(parents=True)
            for image in range(per_class):
                if image % LINKS_PER_FILE == 0:
                    source = folder / f"image-{image:08d}.ppm"
                    source.write_bytes(PPM)
                else:
                    os.link(source, folder / f"image-{image:08d}.ppm")


def measure_index(folder: Path) -> dict[str, float]:
    """Index a folder; return the number of files, the bytes kept and at the peak, and the seconds."""
    with tempfile.TemporaryDirectory(prefix="allrounder-files-") as few:
        make_images(Path(few), 2, 2)
        Folder(path=str(Path(few) / "images"), workers=0).load()  # imports modules, which are not counted
    tracemalloc.start()
    begin = time.perf_counter()
    data = Folder(path=str(folder), workers=0).load()
    seconds = time.perf_counter() - begin
    traced, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    files = len(data.train)
    index = getattr(data.train, "files")  # noqa: B009
    columns = (index.names, index.ends, index.labels)
    kept = sum(column.nbytes for column in columns)  # torch may not use the allocator that is traced
    data.train.fetch(torch.tensor([0, files - 1]))
    return {"files": files, "kept": max(kept, traced), "peak": peak, "seconds": seconds}


def main() -> int:
    """Measure the index of a new folder of images."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allrounder-files-") as folder:
        free = os.statvfs(folder).f_favail
        if free < 2 * options.classes + options.files // LINKS_PER_FILE + 1000:
            print(f"{folder}: only {free} inodes are free; choose another TMPDIR")
            return 1
        begin = time.perf_counter()
        make_images(Path(folder), options.files, options.classes)
        print(f"made {options.files:,} files in {time.perf_counter() - begin:.1f} s")
        found = measure_index(Path(folder) / "images")
    per_file, peak = found["kept"] / found["files"], found["peak"] / found["files"]
    print(f"indexed {found['files']:,.0f} files in {found['seconds']:.1f} s (traced)")
    print(f"kept {found['kept'] / 2**20:.1f} MiB, {per_file:.1f} bytes per file (limit {MAX_BYTES_PER_FILE})")
    print(f"peak {found['peak'] / 2**20:.1f} MiB, {peak:.1f} bytes per file")
    return 0 if per_file <= MAX_BYTES_PER_FILE else 1


if __name__ == "__main__":
    sys.exit(main())
