"""Every architecture of the table is exported as a module that runs without this package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from allrounder.experiments.export.folder import write_state_dict
from allrounder.experiments.export.module import MODULE_FILE, write_module
from allrounder.models import MODELS, ModelSpec
from allrounder.models.base import Architecture
from allrounder.models.ensemble import EnsembleModel, OutputMix
from allrounder.models.resnet import PreActResNet18, ResNet18
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet
from allrounder.rng import Rng
from tests.support.networks import small_model

SHAPE = (3, 32, 32)
CLASSES = ('a "b"', "c\n'''", "\u00e9", "d", "e")
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
SPECS: dict[str, ModelSpec] = {
    **{kind: small_model(kind) for kind, cls in MODELS.items() if issubclass(cls, Architecture)},
    "wide enough for plain strided convolutions": ResNet18(width=8, mean=MEAN, std=STD),
    "mean only": SmallCnn(width=2, mean=MEAN),
    "preact variant": PreActResNet18(width=2, final_norm=False, activation="softplus", raw_shortcut=True),
    "dropout": WideResNet(depth=10, widen=1, dropout=0.3),
    "ensemble": EnsembleModel(
        natural=SmallCnn(width=2),
        robust=ResNet18(width=2, mean=MEAN, std=STD),
        mix=OutputMix(alpha=0.7, scale=2.0, power=2.0, shift=0.5),
    ),
}
SCRIPT = """
import importlib.abc, importlib.util, json, sys
from pathlib import Path

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("allrounder", "pydantic", "jaxtyping"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import torch

logits = {}
for folder in map(Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(f"model_{folder.name}", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    network = module.load()
    x = torch.load(folder / "x.pt", weights_only=True)
    assert not network.training and len(module.CLASSES) == 5
    with torch.no_grad():
        torch.save(network(x), folder / "logits.pt")
assert not [name for name in sys.modules if name.split(".")[0] == "allrounder"]
"""


def shaken(spec: ModelSpec) -> nn.Module:
    """A network whose weights and statistics are not those of its initialisation."""
    with Rng(3).fold_in("network").seed_global():
        network = spec.build(len(CLASSES), SHAPE)
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor + 0.1 * torch.rand_like(tensor))
    return network.eval()


def test_every_kind_of_the_table_is_exported_or_refused():
    assert set(MODELS) <= {*SPECS, "python"}


def test_modules_give_the_same_bits_without_this_package(tmp_path: Path):
    """One process for all, because importing torch takes most of its time."""
    expected: dict[Path, torch.Tensor] = {}
    x = Rng(4).fold_in("x").uniform(torch.empty(3, *SHAPE))
    for number, spec in enumerate(SPECS.values()):
        folder = tmp_path / str(number)
        network = shaken(spec)
        write_state_dict(folder / "weights.pt", network.state_dict())
        text = write_module(spec, CLASSES, SHAPE, "weights.pt", {"name": 'it\'s "\\x"'})
        (folder / MODULE_FILE).write_text(text, encoding="ascii")
        torch.save(x, folder / "x.pt")
        with torch.no_grad():
            expected[folder] = network(x)
    words = [sys.executable, "-I", "-c", SCRIPT, *map(str, expected)]
    process = subprocess.run(words, capture_output=True, text=True, check=False, env={"OMP_NUM_THREADS": "1"})
    assert process.returncode == 0, process.stderr
    for (folder, logits), name in zip(expected.items(), SPECS, strict=True):
        got = torch.load(folder / "logits.pt", weights_only=True)
        assert torch.allclose(got, logits, rtol=1e-5, atol=1e-6), name
        if torch.get_num_threads() == 1:
            assert torch.equal(got, logits), name


@pytest.mark.parametrize("name", SPECS)
def test_a_module_is_readable_ascii_without_traces_of_this_package(name: str, tmp_path: Path):
    text = write_module(SPECS[name], CLASSES, SHAPE, "model.safetensors", {})
    assert text.isascii() and max(map(len, text.splitlines())) <= 110
    for word in (
        "allrounder.",
        "frozen_config",
        "@final",
        "@override",
        "TensorOrProxy",
        "Proxy",
        "Annotated",
    ):
        allowed = word == "allrounder." and name == "ensemble"  # a docstring names fit_ensemble
        assert allowed or word not in text, word
    file = tmp_path / MODULE_FILE
    file.write_text(text, encoding="utf-8")
    checks = ["--isolated", "--select", "E9,F,I", "--line-length", "110", "--output-format", "json"]
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--no-cache", *checks, str(file)]
    found = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert json.loads(found.stdout) == [], found.stdout
