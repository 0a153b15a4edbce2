"""Folders of images: what is listed, how images of every kind are read, and what is message of bad ones."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from allrounder.data import Folder, ImageNet, TinyImageNet
from allrounder.data.datasets.folder import resize_for_crop
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.data.streaming.decode import DecodeSpec, serve
from allrounder.data.streaming.file_index import FileIndex
from allrounder.data.streaming.split import LazySplit
from allrounder.errors import DataError, RecipeError, RunError
from allrounder.recipe.recipe import Recipe
from allrounder.training.data import load_data
from tests.support.pictures import noise, save, write_animals, write_tiny_imagenet


def folder(root: Path, **fields: object) -> Folder:
    return Folder(path=str(root), workers=0, **fields)  # pyright: ignore[reportArgumentType]


def files(split: object) -> list[str]:
    assert isinstance(split, LazySplit)
    return [split.files.name(row) for row in range(len(split))]


def test_classes_are_the_sorted_folders_and_images_are_sorted_in_them(tmp_path):
    data = folder(write_animals(tmp_path / "pets")).load()
    assert data.name == "pets" and data.classes == ("a-cat", "b-dog") and data.shape == (3, 6, 6)
    assert files(data.train) == [f"{name}/{i}.png" for name in data.classes for i in range(3)]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1] and data.test.labels.tolist() == [0, 0, 1, 1]
    expected = np.stack([noise(k) for k in (3, 4, 5, 0, 1, 2)]).transpose(0, 3, 1, 2)
    assert torch.equal(data.train.fetch(torch.arange(6)), torch.tensor(expected).float() / 255)


@pytest.mark.parametrize("name", ["val", "test", "valid", "validation"])
def test_the_usual_names_of_the_test_folder_are_recognised(tmp_path, name):
    assert len(folder(write_animals(tmp_path, split=name)).load().test) == 4


def test_other_folder_names_can_be_set(tmp_path):
    write_animals(tmp_path, split="exam")
    (tmp_path / "train").rename(tmp_path / "lessons")
    assert len(folder(tmp_path, train="lessons", test="exam").load().train) == 6


def test_hidden_files_and_litter_are_ignored(tmp_path):
    write_animals(tmp_path)
    for name in (".DS_Store", "a-cat/.hidden.png", "a-cat/Thumbs.db", "notes.txt", ".git/x.png"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(b"no image")
    assert len(folder(tmp_path).load().train) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rm -r train", r"train: no such folder \(looked from .*expected one folder for each class"),
        ("rm -r val", r"got none of them of the folders val, test, .*set test to its name"),
        ("mkdir test", "got val and test of the folders .*expected one with the test images"),
        ("mkdir train/c", "val: has no class c, but .*train has.*expected the same folders in both"),
        ("mkdir val/c-at", r'train: has no class c-at, but .*val has; did you mean "a-cat"'),
        ("mkdir train/c val/c", "train/c: has no images, expected some; add them, or remove the class"),
        ("rm val/a-cat/*", "val/a-cat: has no images"),
        (
            "mkdir train/a-cat/more",
            "train/a-cat/more: is a folder inside the folder of a class, .*move its images",
        ),
        ("mv train/a-cat/0.png train", "train: has images beside the folders of its classes, such as 0.png"),
        ("mv val/a-cat/0.png val/a-cat/0.pnk", "val/a-cat/0.pnk: is no image by its name, .*rename it"),
        ("ln -s nowhere train/a-cat/9.png", "train/a-cat/9.png: is a link to nowhere, which is not there"),
        ("rm -r train/*", "train: has no folders, expected one for each class"),
        ("rm -r train/a-cat val/a-cat", r"classes: got \('b-dog',\), expected two or more"),
    ],
)
def test_wrong_folder_layout_raises_an_error(tmp_path, change, message):
    write_animals(tmp_path)
    subprocess.run(change, shell=True, cwd=tmp_path, check=True)
    with pytest.raises((ValueError, OSError), match=message):
        folder(tmp_path).load()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resize": 8}, "resize\n  got 8 without a size"),
        ({"size": 9, "resize": 8}, "resize\n  got 8, expected at least the size of 9"),
        ({"channels": 2}, "channels\n  got 2, expected 3 for colour or 1 for greyscale"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Folder(path="x", **fields)


def test_a_recipe_reads_a_folder(tmp_path):
    write_animals(tmp_path)
    task = '[[task]]\nname = "natural"\nobjective = { kind = "natural" }\nlr = 0.1'
    head = (
        f'epochs = 1\nmodel = {{ kind = "small-cnn" }}\ndata = {{ kind = "folder", path = "{tmp_path}" }}\n'
    )
    recipe = Recipe.loads(head + task)
    assert recipe.data == Folder(path=str(tmp_path)) and load_data(recipe).classes == ("a-cat", "b-dog")
    (tmp_path / "train" / "a-cat" / "0.png").write_bytes(b"GIF89a")
    with pytest.raises(RecipeError, match=r"data: .*0.png: cannot be read as an image"):
        load_data(recipe)


MODES = ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16", "I"]


def colourful(mode: str) -> Image.Image:
    image = Image.fromarray(noise(0))
    if mode.startswith("I"):
        levels = np.linspace(0, 65535, 36).round().reshape(6, 6)
        return Image.fromarray(levels.astype(np.uint16 if mode == "I;16" else np.int32))
    return image.convert(mode)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_images_of_every_mode_come_out_in_the_same_channels(tmp_path, mode, channels):
    if mode == "YCbCr" and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow before 13 cannot read the TIFF files of this mode that it writes")
    image = colourful(mode)
    image.save(tmp_path / "x.tif")
    pixels = DecodeSpec(6, 6, channels).decode(str(tmp_path / "x.tif"))
    assert pixels.shape == (channels, 6, 6) and pixels.dtype == np.uint8 and pixels.flags.c_contiguous
    if mode.startswith("I"):
        expected = (np.linspace(0, 65535, 36).round() / 257).round().reshape(1, 6, 6)
        assert np.array_equal(pixels, np.broadcast_to(expected, pixels.shape))
    else:
        got = np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(6, 6, channels)
        assert np.array_equal(pixels, got.transpose(2, 0, 1))


def test_transparency_is_dropped_and_the_colours_beneath_are_taken(tmp_path):
    pixels = np.concatenate([noise(0), np.zeros((6, 6, 1), np.uint8)], axis=2)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    Image.fromarray(noise(1)).quantize(8).save(tmp_path / "p.png", transparency=b"\x00\x80")
    assert np.array_equal(DecodeSpec(6, 6).decode(str(tmp_path / "x.png")), noise(0).transpose(2, 0, 1))
    expected = np.asarray(Image.fromarray(noise(1)).quantize(8).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(DecodeSpec(6, 6).decode(str(tmp_path / "p.png")), expected)


@pytest.mark.parametrize(("low", "high"), [(0, 65536), (-1, 4)])
def test_levels_of_more_than_16_bits_and_floats_are_refused(tmp_path, low, high):
    Image.fromarray(np.array([[low, high]], np.int32)).save(tmp_path / "x.tif")
    with pytest.raises(
        ValueError, match=rf"x.tif: has levels from {low} to {high}, expected at most 16 bits"
    ):
        DecodeSpec(1, 2).decode(str(tmp_path / "x.tif"))
    Image.fromarray(np.zeros((1, 2), np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(ValueError, match=r"f.tif: has floating-point pixels"):
        DecodeSpec(1, 2).decode(str(tmp_path / "f.tif"))


def turned(path: Path) -> Path:
    """4 wide and 6 high, with the tag of a camera that lay on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(0, 6, 4)).save(path, exif=exif)
    return path


def test_exif_orientation_is_applied_only_with_upright(tmp_path):
    path = str(turned(tmp_path / "x.png"))
    assert np.array_equal(DecodeSpec(6, 4).decode(path), noise(0, 6, 4).transpose(2, 0, 1))
    upright = DecodeSpec(4, 6, upright=True).decode(path)
    assert np.array_equal(upright, np.rot90(noise(0, 6, 4), -1).transpose(2, 0, 1))
    root = tmp_path / "photos"
    for part in ("train", "val"):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            turned(root / part / name / "x.png")
    assert folder(root).load().shape == (3, 6, 4)
    assert folder(root, upright=True).load().shape == (3, 4, 6)


@pytest.mark.parametrize(
    ("height", "width", "scaled"),
    [(40, 80, (16, 32)), (81, 40, (32, 16)), (16, 16, (16, 16)), (5, 7, (16, 22))],
)
def test_shorter_side_is_resized_and_the_centre_cropped(tmp_path, height, width, scaled):
    original = Image.fromarray(noise(0, height, width))
    original.save(tmp_path / "x.png")
    got = DecodeSpec(14, 14, resize=16).decode(str(tmp_path / "x.png")).transpose(1, 2, 0)
    whole = np.asarray(original.resize(scaled[::-1], Image.Resampling.BILINEAR))
    top, left = round((scaled[0] - 14) / 2), round((scaled[1] - 14) / 2)
    assert np.array_equal(got, whole[top : top + 14, left : left + 14])


def test_images_are_resized_to_size_or_must_have_equal_sizes(tmp_path):
    write_animals(tmp_path)
    save(tmp_path / "train" / "b-dog" / "1.png", noise(9, 9, 12))
    assert folder(tmp_path, size=4).load().train.fetch(torch.arange(6)).shape == (6, 3, 4, 4)
    data = folder(tmp_path).load()
    with pytest.raises(DataError, match=r"b-dog/1.png: is 12x9, expected 6x6 as the others; set size"):
        data.train.fetch(torch.arange(6))
    assert folder(tmp_path, size=4, channels=1).load().shape == (1, 4, 4)


def test_the_usual_sizes_of_imagenet():
    assert [resize_for_crop(size) for size in (224, 64, 288, 1)] == [256, 73, 329, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as an image"),
        (
            b"hello",
            r"cannot be read as an image \(UnidentifiedImageError.*; get the file again, or take it out",
        ),
        (None, "cannot be read as an image .*truncated"),
    ],
)
def test_a_damaged_image_is_named_and_never_skipped(tmp_path, content, message):
    write_animals(tmp_path, side=30)
    path = tmp_path / "train" / "a-cat" / "1.png"
    path.write_bytes(path.read_bytes()[:1500] if content is None else content)
    data = folder(tmp_path).load()
    with pytest.raises(DataError, match=rf"train/a-cat/1.png: {message}"):
        data.train.fetch(torch.tensor([0, 1]))
    path.unlink()
    with pytest.raises(DataError, match=r"1.png: is gone since the folder was listed; put it back"):
        data.train.fetch(torch.tensor([1]))


def test_damaged_exif_is_ignored(tmp_path):
    exif = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x05\x00\x12\x01"
    Image.fromarray(noise(0)).save(tmp_path / "x.jpg", exif=exif)
    assert DecodeSpec(6, 6).decode(str(tmp_path / "x.jpg")).shape == (3, 6, 6)


def test_names_of_any_kind_are_kept(tmp_path):
    names = ["a b.png", "\u00e4\u6f22.png", "#1.PNG", 'quote".png']
    for i, name in enumerate(names):
        save(tmp_path / "x" / name, noise(i))
    odd = os.fsdecode(b"\xff.png")
    listing = FileIndex.from_files(tmp_path, [(f"x/{name}", i) for i, name in enumerate([*names, odd])])
    assert [listing.name(row) for row in range(5)] == [f"x/{name}" for name in [*names, odd]]
    x = LazySplit(listing, DecodeSpec(6, 6)).fetch(torch.arange(4))
    assert torch.equal(x[2], torch.tensor(noise(2).transpose(2, 0, 1)) / 255)
    with pytest.raises(IndexError, match="got position 5, expected 0 to 4"):
        listing.name(5)


def test_a_long_list_grows(tmp_path):
    listing = FileIndex.from_files(tmp_path, ((f"{i}.png", i % 7) for i in range(5000)))
    assert listing.name(0) == "0.png" and listing.name(4999) == "4999.png" and len(listing) == 5000
    assert torch.equal(listing.labels, torch.arange(5000) % 7)
    assert listing.select([4000, 3]).labels.tolist() == [4000 % 7, 3]


LIST = "# five thousand, or three\n\nb-dog/1.png\nval/a-cat/0.png  # with its folder\n./b-dog/0.png\n"


def test_a_list_file_chooses_test_images_in_its_order(tmp_path):
    write_animals(tmp_path)
    (tmp_path / "few.txt").write_text(LIST)
    data = folder(tmp_path, subset=str(tmp_path / "few.txt")).load()
    assert files(data.test) == ["b-dog/1.png", "a-cat/0.png", "b-dog/0.png"]
    assert data.test.labels.tolist() == [1, 0, 1] and len(data.train) == 6
    assert torch.equal(
        data.test.fetch(torch.tensor([2])), folder(tmp_path).load().test.fetch(torch.tensor([2]))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST + "a-cat/7.png", r"few.txt: line 6: got a-cat/7.png, no such image in .*val; expected a path"),
        (LIST + "b-dog/1.png", r"few.txt: line 6: got b-dog/1.png, which is in line 3 too"),
        ("# nothing\n", r"few.txt: lists no image"),
        (None, r"few.txt: no such file \(looked from .*set subset to a list file"),
    ],
)
def test_wrong_list_file_raises_an_error_with_the_line(tmp_path, text, message):
    write_animals(tmp_path)
    if text is not None:
        (tmp_path / "few.txt").write_text(text)
    with pytest.raises((ValueError, OSError), match=message):
        folder(tmp_path, subset=str(tmp_path / "few.txt")).load()


def test_lists_of_other_systems_are_read(tmp_path):
    write_animals(tmp_path)
    (tmp_path / "val" / "a-cat" / "0.png").rename(tmp_path / "val" / "a-cat" / "0#1 x.png")
    (tmp_path / "few.txt").write_bytes(b"\xef\xbb\xbfb-dog\\1.png\r\n\r\nval\\a-cat\\0#1 x.png # why\r\n")
    data = folder(tmp_path, subset=str(tmp_path / "few.txt")).load()
    assert files(data.test) == ["b-dog/1.png", "a-cat/0#1 x.png"]
    (tmp_path / "few.txt").write_bytes(b"\xff\xfeb-dog")
    with pytest.raises(ValueError, match=r"few\.txt: is no text in UTF-8"):
        folder(tmp_path, subset=str(tmp_path / "few.txt")).load()


def test_a_relative_path_is_good_after_the_working_directory_changed(tmp_path, monkeypatch):
    write_animals(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    whole, alone = Folder(path="pets", workers=0).load(), Folder(path="pets", workers=0).load_test()
    monkeypatch.chdir("/")
    assert len(whole.train.fetch(torch.arange(6))) == 6 and len(alone.test.fetch(torch.arange(4))) == 4


def imagenet(root: Path, *words: str) -> Path:
    write_animals(root, side=30)
    for part in ("train", "val"):
        (root / part / "b-dog").rename(root / part / "n02012849")
        (root / part / "a-cat").rename(root / part / "n03126707")
    (root / "LOC_synset_mapping.txt").write_text("".join(f"{line}\n" for line in words))
    return root


def test_imagenet_is_read_at_224_and_named_by_its_words(tmp_path):
    root = imagenet(tmp_path, "n02012849 crane", "n03126707 crane, lifting", "n01440764 tench, Tinca")
    few = tmp_path / "few.txt"
    few.write_text("n03126707/1.png\n")
    data = ImageNet(folder=str(root), subset=str(few), workers=0).load()
    assert data.name == "imagenet" and data.shape == (3, 224, 224) and len(data.test) == 1
    assert data.classes == ("crane (n02012849)", "crane (n03126707)")
    original = Image.open(root / "val" / "n03126707" / "1.png")
    whole = np.asarray(original.resize((256, 256), Image.Resampling.BILINEAR))[16:240, 16:240]
    assert torch.equal(data.test.fetch(torch.tensor([0]))[0], torch.tensor(whole).permute(2, 0, 1) / 255)
    (root / "LOC_synset_mapping.txt").unlink()
    assert ImageNet(folder=str(root), size=8, workers=0).load().classes == ("n02012849", "n03126707")


def test_words_may_have_empty_lines_and_a_mark_at_the_beginning(tmp_path):
    root = imagenet(tmp_path)
    (root / "LOC_synset_mapping.txt").write_bytes(b"\xef\xbb\xbfn02012849 crane\n\n  \nn03126707 tench\n")
    assert ImageNet(folder=str(root), size=8, workers=0).load().classes == ("crane", "tench")


def test_words_that_miss_a_class_are_refused(tmp_path):
    root = imagenet(tmp_path, "n02012849 crane")
    with pytest.raises(ValueError, match=r"LOC_synset_mapping.txt: has no line for n03126707"):
        ImageNet(folder=str(root), workers=0).load()


def test_imagenet_is_evaluated_on_without_its_training_images(tmp_path):
    root = imagenet(tmp_path, "n02012849 crane", "n03126707 hoist")
    for part in ("train", None):
        data = load_eval_data(str(root))
        assert data.name == "imagenet" and data.train is data.test and data.classes == ("crane", "hoist")
        assert len(data.test) == 4
        if part is not None:
            os.rename(root / part, root / "elsewhere")
    with pytest.raises(OSError, match="train: no such folder"):
        ImageNet(folder=str(root), workers=0).load()


def test_tiny_imagenet_is_read_as_published(tmp_path):
    root = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    data = TinyImageNet(folder=str(root), workers=0).load()
    assert data.shape == (3, 64, 64) and len(data.train) == len(data.test) == 12
    assert data.classes[0] == "goldfish" and len(data.classes) == 3
    for row, name in enumerate(files(data.test)):
        line = next(x for x in (root / "val/val_annotations.txt").read_text().splitlines() if name[7:] in x)
        assert sorted(p.name for p in (root / "train").iterdir())[data.test.labels[row]] == line.split()[1]
    with Image.open(root / "val" / files(data.test)[5]) as image:
        pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert torch.equal(data.test.fetch(torch.tensor([5]))[0], torch.tensor(pixels.copy()) / 255)
    (root / "wnids.txt").unlink()
    same = load_eval_data(str(root)).test
    assert torch.equal(same.fetch(torch.arange(12)), data.test.fetch(torch.arange(12)))


def test_tiny_imagenet_may_be_sorted_into_classes(tmp_path):
    root = write_tiny_imagenet(tmp_path, each=2)
    before = TinyImageNet(folder=str(root), workers=0).load().test
    x = before.fetch(before.labels.argsort(stable=True))
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        name, wnid = line.split()[:2]
        (root / "val" / wnid).mkdir(exist_ok=True)
        (root / "val" / "images" / name).rename(root / "val" / wnid / name)
    (root / "val" / "images").rmdir()
    after = TinyImageNet(folder=str(root), workers=0).load().test
    assert after.labels.tolist() == sorted(before.labels.tolist()) == [0, 0, 1, 1, 2, 2]
    assert torch.equal(after.fetch(torch.arange(6)), x)


@pytest.mark.parametrize("notes", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("place", ["val/images", "val"])
def test_tiny_imagenet_is_sorted_in_several_ways(tmp_path, place, kept, notes):
    """As tools leave it: with the annotations, and an empty folder of images, or without."""
    write_animals(tmp_path, side=64)
    (tmp_path / "val").rename(tmp_path / "sorted")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / "sorted").rename(tmp_path / place)
    if kept:
        (tmp_path / "val" / "images").mkdir(exist_ok=True)
    if notes:
        (tmp_path / "val" / "val_annotations.txt").write_text("\n0.png\ta-cat\n\n1.png\tb-dog\n")
    spec = TinyImageNet(folder=str(tmp_path), workers=0)
    assert spec.load().test.labels.tolist() == [0, 0, 1, 1]
    assert files(spec.load().test) == ["a-cat/0.png", "a-cat/1.png", "b-dog/0.png", "b-dog/1.png"]
    (tmp_path / "train").rename(tmp_path / "else")
    assert spec.load_test().classes == ("a-cat", "b-dog")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_9.JPEG", r"val_annotations.txt: line 1: got 'val_9.JPEG', expected a file name and a class"),
        ("val_9.JPEG n1", r"val_annotations.txt: has the class n1, which .*train has not"),
        ("0.png a-cat\n1.png a-cat\n2.png a-cat", r"lists 2.png, which is not in"),
        ("0.png a-cat", r"images/1.png: is not in val_annotations.txt, so its class is not known"),
    ],
)
def test_annotations_that_do_not_match_the_images_raise_an_error(tmp_path, line, message):
    write_animals(tmp_path, side=64)
    (tmp_path / "val" / "a-cat").rename(tmp_path / "val" / "images")
    (tmp_path / "val" / "val_annotations.txt").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        TinyImageNet(folder=str(tmp_path), workers=0).load()


def test_the_command_line_names_folders_in_three_ways(tmp_path):
    write_animals(tmp_path / "pets")
    write_animals(tmp_path / "flat", split="all")
    plain = load_eval_data(str(tmp_path / "pets"))
    assert plain.shape == (3, 6, 6) and len(plain.test) == 4 and plain.train is plain.test
    assert load_eval_data(f"folder:{tmp_path / 'pets'}").classes == plain.classes
    assert load_eval_data(f"imagenet:{tmp_path / 'pets'}").shape == (3, 224, 224)
    assert load_eval_data(f'{{ kind = "folder", path = "{tmp_path / "pets"}", size = 4 }}').shape == (3, 4, 4)
    assert len(load_eval_data(str(tmp_path / "flat" / "train")).test) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{ kind = "folders", path = "x" }', r'(?s)--data .*unknown kind "folders".*did you mean "folder"'),
        ('{ kind = "folder", ', r"^--data \{.*: not a TOML value"),
        ('{ kind = "folder", path = "absent" }', r"absent: no such folder"),
        ("imagenet:absent", r"absent: no such folder"),
        ("absent", r"absent: no such dataset \(known: embedded, .*folder:PATH, .*and no such file or folder"),
    ],
)
def test_unknown_data_raises_an_error(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=message):
        load_eval_data(text)


def test_decoder_program_returns_the_decoded_pixels(tmp_path):
    path = save(tmp_path / "x.png", noise(0))
    ask = f'{{"spec": {{"height": 6, "width": 6}}, "paths": ["{path}", "{path}"], "views": [null]}}'.encode()
    bad = ask.replace(b"x.png", b"y.png")
    questions = b"".join(len(x).to_bytes(4, "big") + x for x in (ask, bad, ask)) + b"\x00\x00"
    answers = io.BytesIO()
    inspect.unwrap(serve)(io.BytesIO(questions), answers)
    pixels = DecodeSpec(6, 6).decode(str(path)).tobytes()
    good = b"\x01" + (216).to_bytes(8, "big") + pixels + pixels
    assert answers.getvalue().startswith(good) and answers.getvalue().endswith(good)
    middle = answers.getvalue()[len(good) : -len(good)]
    assert middle[:1] == b"\x00" and b"y.png: is gone" in middle
