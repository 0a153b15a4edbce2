"""The frozen copies that attacks run on, batch-norm statistics, and fresh networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from allrounder.data.base import TensorSplit
from allrounder.inference.fast_conv import StemConv, with_fast_convs
from allrounder.inference.fold import Folded, folded_copy
from allrounder.inference.winograd_layer import WinogradConv
from allrounder.models import MODELS, ModelSpec
from allrounder.models.resnet import ResNet18
from allrounder.models.small_cnn import SmallCnn
from allrounder.nn.batchnorm import recalibrate_
from allrounder.rng import Rng
from allrounder.training.mixer import sample_batches
from tests.golden.results import Result, make_result
from tests.golden.subjects import CLASSES, make_images, make_network

NETWORKS: dict[str, dict[str, int]] = {
    "small-cnn": {"width": 4},
    "resnet18": {"width": 8},
    "resnet34": {"width": 8},
    "preactresnet18": {"width": 8},
    "wrn": {"width": 8, "widen": 1, "depth": 10},
    "resnet50": {"width": 2},
    "wrn-50-2": {"width": 2},
}


def make_wide_network() -> nn.Module:
    """Make a network with 128 channels, whose convolutions have quick forms."""
    with Rng(0).seed_global():
        network = nn.Sequential(
            *(nn.Conv2d(3, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()),
            *(nn.Conv2d(128, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU()),
            *(nn.Conv2d(128, 8, 3), nn.Flatten(), nn.Linear(8 * 36, CLASSES)),
        )
        network.train()(make_images(20, 3, 8)[0])
    return network.eval().requires_grad_(False)


def ask(network: nn.Module | Folded, x: Tensor) -> tuple[dict[str, Tensor], list[float]]:
    """Return logits and the gradient of their squares, and a loss."""
    leaf = x.clone().requires_grad_()
    logits = network(leaf)
    (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
    return {"logits": logits.detach(), "gradient": gradient}, [float(logits.detach().square().mean())]


def fold(network: nn.Module, x: Tensor) -> Folded:
    """Fold a network, which must be possible."""
    folded = folded_copy(network, x)
    assert folded is not None
    return folded


def ask_folded(*, quick: bool) -> Result:
    """Ask the folded copy of a wide network, with plain or with quick convolutions."""
    x, _ = make_images(6, 3, 8)
    folded = fold(make_wide_network(), x)
    if quick:
        folded = with_fast_convs(folded, x)
        kinds = set(map(type, folded.network.modules()))
        assert {StemConv, WinogradConv} <= kinds
    return make_result(*ask(folded, x))


def ask_resnet(*, quick: bool) -> Result:
    """Ask the folded copy of a residual network."""
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with Rng(0).seed_global():
        folded = fold(ResNet18(width=32).build(10, (3, 32, 32)), x)
    return make_result(*ask(with_fast_convs(folded, x) if quick else folded, x))


def ask_refreshed() -> Result:
    """Ask a folded copy after the weights of its network have changed."""
    x, _ = make_images(6)
    network = make_network()
    fold(network, x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.25)
    network.train()(x)
    return make_result(*ask(fold(network.eval(), x), x))


def build_fresh(kind: str) -> Result:
    """Build a network with fresh weights, and ask it."""
    shape = (1, 28, 28) if kind == "small-cnn" else (3, 32, 32)
    spec: ModelSpec = MODELS[kind](**NETWORKS[kind])
    with Rng(2).fold_in("init").seed_global():
        network = spec.build(10, shape)
    weights = {f"weights {name}": tensor for name, tensor in network.state_dict().items()}
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    answers, losses = ask(network.eval(), x)
    return make_result(weights | answers, losses)


def recalibrate() -> Result:
    """Measure batch-norm statistics again, over images in the order that training draws."""
    split = TensorSplit(*make_images(50), CLASSES)
    network = make_network()
    recalibrate_(network, sample_batches(split, 37, Rng(1).fold_in("recalibrate"), 12))
    buffers = dict(network.named_buffers())
    return make_result(
        buffers, [float(buffers["bn1.running_mean"].mean()), float(buffers["bn2.running_var"].mean())]
    )


def recalibrate_small_cnn() -> Result:
    """Measure the statistics of the network of the embedded recipes."""
    with Rng(0).seed_global():
        network = SmallCnn(width=4).build(CLASSES, (1, 12, 12))
    x, _ = make_images(32)
    recalibrate_(network, x.split(8))
    return make_result(dict(network.named_buffers()))


CASES: dict[str, Callable[[], Result]] = {
    "inference/folded": partial(ask_folded, quick=False),
    "inference/quick": partial(ask_folded, quick=True),
    "inference/resnet/folded": partial(ask_resnet, quick=False),
    "inference/resnet/quick": partial(ask_resnet, quick=True),
    "inference/refreshed": ask_refreshed,
    "inference/recalibrate": recalibrate,
    "inference/recalibrate/small-cnn": recalibrate_small_cnn,
    **{f"inference/network/{kind}": partial(build_fresh, kind) for kind in NETWORKS},
}
