from __future__ import annotations

import os
import pickle
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from allrounder.errors import RunError
from allrounder.models import external
from allrounder.models.external import load_network, parse_architecture, read_weights
from allrounder.models.resnet import PreActResNet18, ResNet18
from allrounder.models.resnet_imagenet import WideResNet50
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet
from allrounder.nn.state import weights_of
from allrounder.rng import Rng
from tests.support.networks import Tiny, same

GREY, RGB = (1, 16, 16), (3, 16, 16)


def small(shape: tuple[int, int, int] = GREY, **fields: Any) -> nn.Module:
    with Rng(5).fold_in("foreign").seed_global():
        return SmallCnn(**fields).build(3, shape).eval()


def images(shape: tuple[int, int, int]) -> torch.Tensor:
    return Rng(6).fold_in("x").uniform(torch.empty(2, *shape))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("resnet18", ResNet18()),
        ("ResNet18", ResNet18()),
        ("ResNet-18", ResNet18()),
        ("preact_resnet18", PreActResNet18()),
        ("PreActResNet-18", PreActResNet18()),
        ("small-cnn", SmallCnn()),
        ("wrn-28-10", WideResNet(depth=28)),
        ("WRN28", WideResNet(depth=28)),
        ("WideResNet-34-20", WideResNet(depth=34, widen=20)),
        ("wrn_70_16", WideResNet(depth=70, widen=16)),
        ("wrn-32-10", WideResNet(depth=32, counting="papers")),
        ("WRN32", WideResNet(depth=32, counting="papers")),
        ("wrn-50-2", WideResNet50()),
        ("wide_resnet50_2", WideResNet50()),
    ],
)
def test_architectures_are_found_in_any_spelling(name, spec):
    assert parse_architecture(name) == spec


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", r'resnet81: no such network \(known: .*wrn-DEPTH-WIDEN\); did you mean "resnet18"'),
        ("python", r'python: no such network .*name a custom one as "package.module:factory"'),
        ("wrn-33-10", r"wrn-33-10: no such network: depth 33 gives .* use 28 or 34"),
        ("wrn-28-0", r"wrn-28-0: no such network: .*greater than or equal to 1"),
    ],
)
def test_an_unknown_architecture_is_refused(name, message):
    with pytest.raises(RunError, match=message):
        parse_architecture(name)


@pytest.mark.parametrize("name", ["own.safetensors", "own.pt", "own.pth", "own.ckpt", "own.bin"])
def test_a_loaded_architecture_is_in_evaluation_mode(tmp_path, name):
    network = small()
    save = save_file if name.endswith(".safetensors") else torch.save
    save(network.state_dict(), tmp_path / name)
    got = load_network("small-cnn", tmp_path / name, classes=3, shape=GREY)
    assert not got.training and same(weights_of(got), weights_of(network))
    assert torch.equal(got(images(GREY)), network(images(GREY)))


def test_a_normalisation_in_the_file_is_built_in(tmp_path):
    network = small(RGB, mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5))
    constants = {"mu": torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1), "sigma": torch.tensor(0.5)}
    torch.save({"state_dict": {**network.state_dict(), **constants}}, tmp_path / "own.pt")
    got = load_network("small-cnn", tmp_path / "own.pt", classes=3, shape=RGB)
    assert torch.equal(got(images(RGB)), network(images(RGB)))
    torch.save({**network.state_dict(), "mean": torch.zeros(2)}, tmp_path / "two.pt")
    with pytest.raises(RunError, match=r"two.pt: does not fit images .*has 2 numbers, but the images have 3"):
        load_network("small-cnn", tmp_path / "two.pt", classes=3, shape=RGB)


def test_of_several_sets_in_a_file_one_is_chosen(tmp_path):
    one, other = small(), small(width=16)
    for tensor in weights_of(other).values():
        tensor.add_(1)
    torch.save({"model": one.state_dict(), "ema": other.state_dict()}, tmp_path / "both.pt")
    with pytest.raises(RunError, match=r"both.pt: holds 2 sets of weights \(model, ema\)"):
        load_network("small-cnn", tmp_path / "both.pt", classes=3, shape=GREY)
    got = load_network("small-cnn", tmp_path / "both.pt", classes=3, shape=GREY, key="ema")
    assert same(weights_of(got), weights_of(other))


def test_an_architecture_without_weights_is_no_network():
    with pytest.raises(RunError, match="small-cnn: names an architecture, which has no weights; give a file"):
        load_network("small-cnn", classes=3, shape=GREY)


SOURCE = """
from torch import nn
import tests.support.networks

class Own(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)

class Holder:
    make = staticmethod(lambda: Own())

def train_mode():
    return tests.support.networks.tiny().train()

def sized(width, classes=3):
    return nn.Linear(width, classes)

def broken():
    raise KeyError("somebody's own mistake")

ready, number = Own(), 3
nothing = lambda: 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(SOURCE)
    (tmp_path / "own_needs.py").write_text("import absent_package\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path, "the current folder is looked into while it is needed, and no longer"
    for name in ("own_networks", "own_needs"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["Own", "Holder.make", "ready", "train_mode"])
def test_a_factory_in_the_current_folder_makes_the_network(module, attribute):
    network = load_network(f"own_networks:{attribute}", classes=3, shape=GREY)
    assert isinstance(network, nn.Linear if attribute != "train_mode" else Tiny) and not network.training


def test_a_factorys_network_gets_the_weights_of_a_file(module):
    tensors = {"module.weight": torch.arange(6.0).view(3, 2), "module.bias": torch.ones(3)}
    save_file(tensors, module / "own.safetensors")
    network: Any = load_network("own_networks:Own", module / "own.safetensors", classes=3, shape=GREY)
    assert torch.equal(network.weight, tensors["module.weight"])
    save_file({"weight": torch.ones(2, 2)}, module / "other.safetensors")
    with pytest.raises(RunError, match=r"other.safetensors: does not fit Own: 1 tensors .*missing \(bias\)"):
        load_network("own_networks:Own", module / "other.safetensors", classes=3, shape=GREY)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_network:Own", r"no module own_network \(looked from .*change to its folder or install it"),
        ("own_needs:Own", r"own_needs needs absent_package, which is not installed"),
        ("own_networks:own", r'own_networks has no "own"; did you mean "Own"'),
        ("own_networks:", r'own_networks has no ""; name a factory'),
        ("own_networks:number", r"is a int, expected a function or class that returns a network"),
        ("own_networks:nothing", r"returned a int, expected a torch.nn.Module; return the network"),
        (
            "own_networks:sized",
            r"cannot be called without arguments \(missing a required argument: 'width'\)",
        ),
    ],
)
def test_a_factory_that_gives_no_network_is_refused(module, spec, message):
    with pytest.raises(RunError, match=f"^{spec}: {message}"):
        load_network(spec, classes=3, shape=GREY)


def test_an_error_inside_a_factory_is_not_wrapped(module):
    with pytest.raises(KeyError, match="somebody's own mistake"):
        load_network("own_networks:broken", classes=3, shape=GREY)


def write_factory(file: Path, width: int) -> str:
    """Write a file with a factory, and a module beside it that has its number."""
    file.parent.mkdir(exist_ok=True)
    (file.parent / f"number_{width}.py").write_text(f"WIDTH = {width}\n", encoding="utf-8")
    text = "from torch import nn\n\nclass Own(nn.Linear):\n    def __init__(self):\n"
    text += f"        from number_{width} import WIDTH\n        super().__init__(WIDTH, 3)\n"
    file.write_text(text, encoding="utf-8")
    return f"{file}:Own"


def test_files_with_one_name_are_different_networks(tmp_path: Path):
    specs = {width: write_factory(tmp_path / str(width) / "model.py", width) for width in (2, 4)}
    specs[5] = write_factory(tmp_path / "my.net.py", 5)
    for width, spec in specs.items():
        network: Any = load_network(spec, classes=3, shape=GREY)
        assert network.in_features == width
        assert type(pickle.loads(pickle.dumps(network))) is type(network)
    with pytest.raises(RunError, match=r"own.py needs absent_package, which is not installed; install it"):
        (tmp_path / "own.py").write_text("import absent_package\n", encoding="utf-8")
        load_network(f"{tmp_path / 'own.py'}:Own", classes=3, shape=GREY)


def test_another_process_imports_the_class_of_a_file(tmp_path: Path):
    network = load_network(write_factory(tmp_path / "model.py", 2), classes=3, shape=GREY)
    (tmp_path / "class").write_bytes(pickle.dumps(type(network)))
    program = "import pickle; print(pickle.load(open('class', 'rb')).__name__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "Own\n"


def test_a_file_may_be_a_link_with_others_beside_it(tmp_path: Path):
    """As in the cache of Hugging Face."""
    write_factory(tmp_path / "blobs" / "0123", 2)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "number_2.py").rename(tmp_path / "snapshot" / "number_2.py")
    (tmp_path / "snapshot" / "model.py").symlink_to("../blobs/0123")
    sys.modules.pop("number_2", None)
    network = load_network(f"{tmp_path}/snapshot/model.py:Own", classes=3, shape=GREY)
    assert isinstance(network, nn.Linear)


def write(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_both_forms_of_torch_files_are_read_whole_or_not_at_all(tmp_path, options):
    content = {"state_dict": {"weight": torch.arange(4000.0).view(40, 100)}}
    path = write(tmp_path / "own.pth.tar", content, **options)
    assert torch.equal(read_weights(path)["weight"], content["state_dict"]["weight"])
    whole = path.read_bytes()
    for length in (0, 50, 5000, len(whole) - 100):
        path.write_bytes(whole[:length])
        with pytest.raises(
            RunError, match=r"own.pth.tar: not a torch.save file, or truncated \(.+\); download it"
        ):
            read_weights(path)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (Namespace(lr=0.1), "argparse.Namespace"),
        (np.float64(0.9), "multiarray.scalar"),
        (nn.Linear(2, 2), "Linear"),
    ],
)
def test_a_file_that_holds_more_than_tensors_is_refused(tmp_path, more, what):
    path = write(tmp_path / "own.pt", {"state_dict": {"weight": torch.ones(2, 2)}, "more": more})
    message = rf"holds more than tensors \(\S*{what}\); reading it would run code, .*executed; ask for"
    with pytest.raises(RunError, match=rf"own.pt: {message}.*state_dict\(\) alone"):
        read_weights(path)


class Trap:
    """What a malicious file does: its reading calls a function."""

    def __init__(self, function: Callable[..., object], argument: object):
        self.call = function, (argument,)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


TRAPS = {
    "a method": Trap(Path.touch, Path("sprung")),
    "a command": Trap(os.system, "touch sprung"),  # pyright: ignore[reportDeprecated]
    "Python": Trap(exec, "open('sprung', 'w')"),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle 2", "pickle 4"])
def test_nothing_in_a_file_is_ever_run(trap: str, form: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"weight": torch.ones(2, 2), "trap": TRAPS[trap]}
    if form in ("zip", "legacy"):
        write(Path("trap.pt"), content, _use_new_zipfile_serialization=form == "zip")
    else:
        Path("trap.pt").write_bytes(pickle.dumps(TRAPS[trap], protocol=int(form[-1])))
    message = "reading it would run code, so it was refused and nothing was executed; ask for"
    with pytest.raises(RunError, match=rf"holds more than tensors \(.+\); {message}"):
        read_weights(Path("trap.pt"))
    assert not Path("sprung").exists()


def test_an_unsafe_torch_version_reads_only_safetensors(tmp_path, monkeypatch):
    path = write(tmp_path / "own.pt", {"weight": torch.ones(2, 2)})
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "own.safetensors")
    monkeypatch.setattr(external.torch, "__version__", "2.9.1+cpu")
    with pytest.raises(
        RunError, match=r"needs torch 2.10 or later.*2.9.1\+cpu.*update torch, or convert the file"
    ):
        read_weights(path)
    assert list(read_weights(tmp_path / "own.safetensors")) == ["weight"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pt", b"\n<!DOCTYPE html><html>", "is a web page, expected weights; the download failed"),
        ("a.safetensors", b"<HTML><body>", "is a web page"),
        ("a.pt", b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer.*git lfs pull"),
        ("a.pt", b"hello", r"not a torch.save file, or truncated \(\w+: "),
        ("a.safetensors", b"hello", "not a safetensors file, or truncated"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name}: {message}"):
        read_weights(tmp_path / name)


def test_a_missing_file_or_one_without_named_tensors_is_refused(tmp_path):
    with pytest.raises(
        RunError, match=r"a.pt: holds a list, expected tensors by name; save network.state_dict"
    ):
        read_weights(write(tmp_path / "a.pt", [torch.ones(2, 2)]))
    with pytest.raises(RunError, match=r"b.pt: holds no weights \(it has: epoch\)"):
        read_weights(write(tmp_path / "b.pt", {"epoch": 3}))
    with pytest.raises(RunError, match=r"c.pt: no such file \(looked from .*give a file of weights"):
        read_weights(tmp_path / "c.pt")
    with pytest.raises(RunError, match="is a folder"):
        read_weights(tmp_path)
