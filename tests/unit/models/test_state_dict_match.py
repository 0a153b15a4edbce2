from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allrounder.data.inputs.by_name import load_eval_data
from allrounder.errors import RunError
from allrounder.models.external import read_weights
from allrounder.models.resnet import PreActResNet18, ResNet18
from allrounder.models.resnet_imagenet import ResNet50, WideResNet50
from allrounder.models.state_dict_match import (
    find_state_dict,
    load_matched_,
    match_state_dict,
    read_normalisation,
)
from allrounder.models.wide_resnet import WideResNet
from allrounder.nn.state import clone, weights_of
from allrounder.rng import Rng
from tests.support.networks import same
from tests.support.paths import SHARED_DATA

CIFAR, LARGE = (3, 32, 32), (3, 64, 64)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
WIDTH = 4
SHARED = SHARED_DATA


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Step(nn.Module):
    """A residual block after He et al.; its shortcut has the name it is given."""

    def __init__(self, sizes: list[tuple[int, int, int, int]], shortcut: str) -> None:
        super().__init__()
        self.depth, self.called = len(sizes), shortcut
        for i, size in enumerate(sizes, start=1):
            setattr(self, f"conv{i}", conv(*size))
            setattr(self, f"bn{i}", nn.BatchNorm2d(size[1]))
        inputs, outputs, stride = sizes[0][0], sizes[-1][1], max(size[3] for size in sizes)
        if inputs != outputs or stride > 1:
            parts = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            setattr(self, shortcut, nn.Sequential(*parts))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for i in range(1, self.depth + 1):
            out = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(out))
            out = out.relu() if i < self.depth else out
        return (out + (getattr(self, self.called)(x) if hasattr(self, self.called) else x)).relu()


class Residual(nn.Module):
    """ResNet with the names of torchvision (downsample, fc) or of the CIFAR networks (shortcut, linear)."""

    def __init__(
        self, large: bool, shortcut: str, last: str, widen: int = 1, classes: int = 10, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.large, self.last = large, last
        self.conv1 = conv(3, width, 7, 2) if large else conv(3, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for number, count in enumerate((3, 4, 6, 3) if large else (2, 2, 2, 2)):
            blocks, w = list[nn.Module](), width * 2**number
            for i in range(count):
                stride = 2 if number and not i else 1
                inner = w * widen
                wide = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, 4 * w, 1, 1)]
                sizes = wide if large else [(inputs, w, 3, stride), (w, w, 3, 1)]
                blocks.append(Step(sizes, shortcut))
                inputs = sizes[-1][1]
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        setattr(self, last, nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = F.max_pool2d(x, 3, 2, 1) if self.large else x
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return getattr(self, self.last)(x.mean((2, 3)))


class Before(nn.Module):
    """A block with batch-norm and activation first; its shortcut takes the activated images."""

    def __init__(self, inputs: int, outputs: int, stride: int, wide: bool) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs, 3)
        self.called = "convShortcut" if wide else "shortcut"
        if inputs != outputs:
            way = conv(inputs, outputs, 1, stride)
            setattr(self, self.called, way if wide else nn.Sequential(way))

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x).relu()
        out = self.conv2(self.bn2(self.conv1(active)).relu())
        return out + (getattr(self, self.called)(active) if hasattr(self, self.called) else x)


class PreAct(nn.Module):
    """PreActResNet-18 with the names of the CIFAR networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(3, WIDTH, 3)
        for number in range(4):
            w = WIDTH * 2**number
            first = Before(w // 2 if number else w, w, 2 if number else 1, wide=False)
            setattr(self, f"layer{number + 1}", nn.Sequential(first, Before(w, w, 1, wide=False)))
        self.bn, self.linear = nn.BatchNorm2d(8 * WIDTH), nn.Linear(8 * WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return self.linear(F.avg_pool2d(self.bn(x).relu(), 4).flatten(1))


class Group(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = Before(inputs, outputs, stride, wide=True)
        self.layer = nn.Sequential(first, Before(outputs, outputs, 1, wide=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Trades(nn.Module):
    """WRN-16-2 with the names of TRADES, RobustBench's constants, and the block that is never run."""

    mu: Tensor
    sigma: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(3, 16, 3)
        self.block1, self.sub_block1 = Group(16, 32, 1), Group(16, 32, 1)
        self.block2, self.block3 = Group(32, 64, 2), Group(64, 128, 2)
        self.bn1, self.fc = nn.BatchNorm2d(128), nn.Linear(128, 10)
        self.register_buffer("mu", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("sigma", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mu) / self.sigma
        x = self.bn1(self.block3(self.block2(self.block1(self.conv1(x))))).relu()
        return self.fc(F.avg_pool2d(x, 8).view(-1, 128))


def drawn(make: Callable[[], nn.Module], seed: int = 1) -> Any:
    """A network in which no two tensors are alike, batch-norm's included, in evaluation mode."""
    with Rng(seed).fold_in("zoo").seed_global():
        network = make().eval()
        for name, tensor in weights_of(network).items():
            if name.endswith("running_var") or (tensor.ndim == 1 and name.endswith("weight")):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("running_mean") or (tensor.ndim == 1 and name.endswith("bias")):
                tensor.normal_(0, 0.3)
    return network


def images(shape: tuple[int, int, int] = CIFAR) -> Tensor:
    return Rng(2).fold_in("x").uniform(torch.empty(3, *shape))


def assert_same_function(one: nn.Module, other: nn.Module, shape: tuple[int, int, int] = CIFAR) -> None:
    with torch.no_grad():
        expected, got = one(images(shape)), other.eval()(images(shape))
    assert expected.std() > 0.01, "logits that all agree prove nothing"
    assert torch.allclose(got, expected, atol=1e-5 * float(expected.abs().max()))


def cifar() -> Any:
    return drawn(lambda: Residual(False, "shortcut", "linear"))


SMALL = ResNet18(width=WIDTH)
FAMILIES = {
    "cifar": (lambda: Residual(False, "shortcut", "linear"), SMALL, CIFAR),
    "torchvision names, small images": (lambda: Residual(False, "downsample", "fc"), SMALL, CIFAR),
    "torchvision": (lambda: Residual(True, "downsample", "fc"), ResNet50(width=WIDTH), LARGE),
    "torchvision, wide": (lambda: Residual(True, "downsample", "fc", 2), WideResNet50(width=WIDTH), LARGE),
    "cifar names, large images": (lambda: Residual(True, "shortcut", "linear"), ResNet50(width=WIDTH), LARGE),
    "preact": (PreAct, PreActResNet18(width=WIDTH), CIFAR),
    "trades": (Trades, WideResNet(depth=16, widen=2, mean=(0.0, 0.0, 0.0)), CIFAR),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_public_network_gives_the_same_logits_as_ours_with_its_weights(family):
    make, spec, shape = FAMILIES[family]
    theirs, ours = drawn(make), spec.build(10, shape)
    load_matched_(ours, theirs.state_dict())
    assert_same_function(theirs, ours, shape)


def test_match_returns_all_tensors_and_does_not_change_the_network():
    network, theirs = SMALL.build(10, CIFAR), cifar().state_dict()
    before = clone(weights_of(network))
    fitted = match_state_dict(network, theirs)
    assert same(weights_of(network), before) and same(fitted, theirs)


@pytest.mark.parametrize(
    "prefix",
    ["", "module.", "model.", "_orig_mod.", "module.model.", "_orig_mod.module.", "1.", "model.encoder."],
)
@pytest.mark.parametrize("last", ["fc", "linear"])
def test_prefixes_of_wrappers_are_removed(prefix, last):
    theirs = drawn(lambda: Residual(False, "shortcut", last))
    fitted = match_state_dict(
        SMALL.build(10, CIFAR), {prefix + name: t for name, t in theirs.state_dict().items()}
    )
    assert torch.equal(fitted["linear.weight"], getattr(theirs, last).weight)
    assert torch.equal(fitted["layer2.0.shortcut.1.running_var"], theirs.layer2[0].shortcut[1].running_var)


@pytest.mark.parametrize("last", ["head", "head.fc", "classifier", "classifier.1", "last_linear", "fc.1"])
def test_the_last_layer_may_have_the_names_of_timm(last: str):
    theirs = drawn(lambda: Residual(False, "downsample", "fc"))
    renamed = {re.sub(r"^fc\.", f"{last}.", name): tensor for name, tensor in theirs.state_dict().items()}
    ours = SMALL.build(10, CIFAR)
    load_matched_(ours, {"state_dict": {f"model.{name}": tensor for name, tensor in renamed.items()}})
    assert_same_function(theirs, ours)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "state_dict": lambda inner: {"epoch": 3, "state_dict": inner, "best_acc": torch.tensor(0.9)},
    "model": lambda inner: {"model": inner, "optimizer": {"state": {0: {"momentum": torch.ones(2, 2)}}}},
    "net": lambda inner: {"net": inner, "acc": 95.1},
    "model_state_dict": lambda inner: {"model_state_dict": inner, "rng": {"cpu": torch.zeros(9)}},
    "ema": lambda inner: {"ema": {"state_dict": inner, "decay": 0.99}},
    "mixed": lambda inner: {**inner, "epoch": 3},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_nested_state_dicts_are_found(wrapper):
    inner = cifar().state_dict()
    assert same(find_state_dict(WRAPPERS[wrapper](inner)), dict(inner))
    assert same(match_state_dict(SMALL.build(10, CIFAR), WRAPPERS[wrapper](inner)), dict(inner))


def test_of_several_sets_one_must_be_chosen():
    last, best = cifar().state_dict(), drawn(lambda: Residual(False, "shortcut", "linear"), 2).state_dict()
    both = {"last": {"net": last}, "best": best}
    with pytest.raises(RunError, match=r"old.pt: holds 2 sets of weights \(last.net, best\); choose one by"):
        find_state_dict(both, source="old.pt")
    network = SMALL.build(10, CIFAR)
    assert same(match_state_dict(network, both, key="best"), dict(best)) and same(
        match_state_dict(network, both, key="last.net"), dict(last)
    )
    with pytest.raises(
        RunError, match=r'no weights "bset" \(there are: last.net, best\); did you mean "best"'
    ):
        match_state_dict(network, both, key="bset")


def test_a_checkpoint_without_weights_is_refused():
    with pytest.raises(RunError, match=r"holds no weights \(it has: epoch, arch\), expected tensors by name"):
        find_state_dict({"epoch": 3, "arch": "resnet18"})


def test_old_files_have_no_counters():
    theirs = {name: t for name, t in cifar().state_dict().items() if "num_batches" not in name}
    fitted = match_state_dict(SMALL.build(10, CIFAR), theirs)
    assert fitted["bn1.num_batches_tracked"] == 0 and len(fitted) > len(theirs)


def test_every_tensor_is_needed():
    theirs, network = cifar().state_dict(), SMALL.build(10, CIFAR)
    for name in [name for name in theirs if "num_batches" not in name][::9]:
        with pytest.raises(
            RunError, match=rf"does not fit ResNet: 1 tensors of the network are missing \({name}"
        ):
            match_state_dict(network, {other: tensor for other, tensor in theirs.items() if other != name})


@pytest.mark.parametrize(
    "name", ["extra.weight", "layer2.0.downsample.0.weight", "fc.weight", "module.bn1.bias"]
)
def test_no_tensor_is_left_over_and_none_has_two_sources(name):
    theirs = {**cifar().state_dict(), name: torch.zeros(1)}
    with pytest.raises(RunError, match=rf"of the file are left over \(.*{name}"):
        match_state_dict(SMALL.build(10, CIFAR), theirs)


def test_unused_tensors_of_public_code_are_ignored():
    plain = cifar().state_dict()
    madry = {f"module.model.{name}": tensor for name, tensor in plain.items()}
    madry |= {f"module.attacker.model.{name}": tensor for name, tensor in plain.items()}
    averaged = {"n_averaged": torch.tensor(7), **{f"module.{name}": t for name, t in plain.items()}}
    for theirs in (madry, averaged):
        assert same(match_state_dict(SMALL.build(10, CIFAR), theirs), dict(plain))


def test_a_mismatch_suggests_the_nearest_name():
    theirs = {name.replace("layer4.1.conv2", "layer4.1.convb"): t for name, t in cifar().state_dict().items()}
    missing = (
        r'missing \(layer4.1.conv2.weight; did you mean "layer4.1.convb.weight"\?\), 1 of the file are left'
    )
    with pytest.raises(
        RunError, match=rf"^zoo.pt: does not fit ResNet: 1 tensors of the network are {missing}"
    ):
        match_state_dict(SMALL.build(10, CIFAR), theirs, source="zoo.pt")


def test_a_mismatch_lists_the_shapes():
    shapes = (
        r"2 have another shape \(linear.weight is float32 \(10, 32\), expected float32 \(100, 32\), linear"
    )
    with pytest.raises(RunError, match=rf"{shapes}.*number of classes that the file was made with"):
        match_state_dict(SMALL.build(100, CIFAR), cifar().state_dict())
    with pytest.raises(
        RunError, match=r"conv1.weight is float32 \(4, 3, 7, 7\), expected float32 \(4, 3, 3, 3\)"
    ):
        match_state_dict(
            SMALL.build(10, CIFAR), drawn(lambda: Residual(True, "downsample", "fc")).state_dict()
        )


def test_the_other_residual_network_is_refused():
    with pytest.raises(RunError, match=r"left over \(bn.weight"):
        match_state_dict(
            PreActResNet18(width=WIDTH, final_norm=False).build(10, CIFAR), drawn(PreAct).state_dict()
        )
    with pytest.raises(RunError, match="does not fit PreActResNet"):
        match_state_dict(PreActResNet18(width=WIDTH).build(10, CIFAR), cifar().state_dict())


CONSTANTS = [("mean", "std"), ("mu", "sigma"), ("normalize.mean", "normalize.std"), ("0.mean", "0.std")]


@pytest.mark.parametrize("names", [*CONSTANTS, ("module.normalizer.new_mean", "module.normalizer.new_std")])
def test_normalisation_constants_are_loaded(names):
    theirs = cifar()
    raw = {f"model.{name}": t for name, t in theirs.state_dict().items()}
    raw |= {names[0]: torch.tensor(MEAN).view(1, 3, 1, 1), names[1]: torch.tensor(STD)}
    result = read_normalisation(raw)
    assert result["mean"] == pytest.approx(MEAN) and result["std"] == pytest.approx(STD)
    ours = ResNet18(width=WIDTH, mean=(0.5, 0.5, 0.5)).build(10, CIFAR)
    load_matched_(ours, raw)
    with torch.no_grad():
        x = (images() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        assert torch.allclose(ours.eval()(images()), theirs(x), atol=1e-4)
    with pytest.raises(
        RunError, match=rf"normalises the images \({names[0]} = \[0.4914, .*, this one does not"
    ):
        match_state_dict(SMALL.build(10, CIFAR), raw)


def test_neutral_normalisation_needs_no_layer():
    raw = {**cifar().state_dict(), "mean": torch.zeros(3), "std": torch.ones(1, 3, 1, 1)}
    network = SMALL.build(10, CIFAR)
    load_matched_(network, raw)
    assert_same_function(cifar(), network)
    with pytest.raises(RunError, match=r"std = \[1.0, 1.0, 0.5\]"):
        match_state_dict(network, {**raw, "std": torch.tensor([1.0, 1.0, 0.5])})


def test_one_constant_applies_to_all_channels_and_two_are_a_mismatch():
    ours = ResNet18(width=WIDTH, mean=(0.5, 0.5, 0.5)).build(10, CIFAR)
    fitted = match_state_dict(ours, {**cifar().state_dict(), "mean": torch.tensor(0.25)})
    assert fitted["normalise.mean"].flatten().tolist() == [0.25] * 3
    assert fitted["normalise.std"].flatten().tolist() == [1.0] * 3
    with pytest.raises(RunError, match=r"normalise.mean is float32 \(2,\), expected float32 \(3, 1, 1\)"):
        match_state_dict(ours, {**cifar().state_dict(), "mean": torch.zeros(2)})


def test_names_of_a_custom_network_are_not_rewritten():
    def own() -> nn.Module:
        inside = nn.ModuleDict({"1": nn.Linear(4, 4), "fc": nn.Linear(4, 4), "linear": nn.Linear(4, 4)})
        return nn.ModuleDict({"model": inside, "sub_block1": nn.Linear(2, 2)})

    theirs, network = drawn(own), own()
    assert same(match_state_dict(network, theirs.state_dict()), theirs.state_dict())
    parallel = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    assert same(match_state_dict(network, parallel), theirs.state_dict())
    with pytest.raises(RunError, match=r"sub_block1.weight"):
        match_state_dict(network, {name: t for name, t in parallel.items() if "sub_block1" not in name})


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "net.module."])
@pytest.mark.parametrize("part", ["encoder", "base_model"])
def test_a_part_of_a_network_is_not_taken_for_all_of_it(prefix: str, part: str):
    def own() -> nn.Module:
        return nn.ModuleDict({part: nn.ModuleDict({"fc": nn.Linear(4, 4)}), "fc": nn.Linear(4, 4)})

    theirs, network = drawn(own), own()
    raw = {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items()}
    assert same(match_state_dict(network, raw), theirs.state_dict())


def test_a_tensor_of_an_encoder_is_no_normalisation_constant():
    network = nn.ModuleDict({"encoder": nn.ModuleDict({"pool": nn.Module()}), "fc": nn.Linear(4, 4)})
    raw = dict(network.state_dict())
    network.get_submodule("encoder.pool").register_buffer("mean", torch.zeros(4))
    with pytest.raises(RunError, match=r"1 tensors of the network are missing \(encoder.pool.mean"):
        match_state_dict(network, raw)


def test_half_precision_is_widened_and_whole_numbers_are_refused():
    theirs = cifar().state_dict()
    half = {name: t.half() if t.is_floating_point() else t for name, t in theirs.items()}
    fitted = match_state_dict(SMALL.build(10, CIFAR), half)
    assert fitted["conv1.weight"].dtype == torch.float32
    assert torch.equal(fitted["conv1.weight"], theirs["conv1.weight"].half().float())
    with pytest.raises(RunError, match=r"conv1.weight is int8 \(4, 3, 3, 3\), expected float32"):
        match_state_dict(
            SMALL.build(10, CIFAR), {**theirs, "conv1.weight": torch.ones(4, 3, 3, 3, dtype=torch.int8)}
        )


def test_nonfinite_numbers_are_refused():
    theirs = cifar().state_dict()
    theirs["bn1.running_var"][2] = float("nan")
    with pytest.raises(
        RunError, match=r"holds NaN or infinite numbers \(bn1.running_var\); download the file again"
    ):
        match_state_dict(SMALL.build(10, CIFAR), theirs)


def test_a_naturally_trained_public_network_keeps_its_accuracy():
    result = importlib.util.find_spec("pyautoattack")
    if result is None or result.origin is None:
        pytest.skip("pyautoattack, which ships a trained CIFAR-10 network, is not installed")
    examples, head = Path(result.origin).parent / "examples", SHARED / "cifar10_test_head.npz"
    if not head.is_file():
        pytest.skip("the first CIFAR-10 test images are not at ../shared/data/cifar10_test_head.npz")
    module = importlib.util.spec_from_file_location("public_resnet", examples / "resnet.py")
    assert module is not None and module.loader is not None
    code = importlib.util.module_from_spec(module)
    module.loader.exec_module(code)
    weights, split = read_weights(examples / "model_test.pt"), load_eval_data(str(head)).test
    theirs, ours = code.ResNet18().eval(), ResNet18().build(10, CIFAR).eval()
    theirs.load_state_dict(weights)
    load_matched_(ours, weights)
    index = torch.arange(100)
    with torch.no_grad():
        x = split.fetch(index)
        logits = ours(x)
        assert torch.allclose(logits[:10], theirs(x[:10]), atol=1e-4)
    assert int((logits.argmax(1) == split.labels[index]).sum()) >= 93
