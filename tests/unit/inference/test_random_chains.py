"""Chains of random small networks give the bits of autograd for images of every layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from allrounder.attacks.base import perturb
from allrounder.attacks.pgd import Pgd
from allrounder.inference.fast_crafting import crafting_copy
from allrounder.inference.fold import Folded, folded_copy
from allrounder.models.layers import AdaptiveAvgPool
from allrounder.rng import Rng
from allrounder.threats.threat import Threat

THREAT = Threat.parse("L2:0.5")
NUM_CLASSES = 5
LAYOUTS = ("contiguous", "channels_last", "sliced", "expanded")


class RandomNet(nn.Module):
    """Some layers on images, then one or two linear layers."""

    def __init__(self, features: nn.Sequential, size: int, *, deep: bool, relu_first: bool) -> None:
        super().__init__()
        self.features, self.relu_first = features, relu_first
        widths = (size, 6, NUM_CLASSES) if deep else (size, NUM_CLASSES)
        self.linear = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.features(x), 1)
        if self.relu_first:
            x = F.relu(x)
        x = self.linear[0](x)
        return self.linear[1](F.relu(x)) if len(self.linear) > 1 else x


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int]]:
    """A network and the shape of its images. Sizes and channels of one are frequent."""
    channels = draw(st.sampled_from([1, 2, 3, 8]))
    height, width = draw(st.sampled_from([1, 2, 5, 8])), draw(st.sampled_from([1, 3, 8, 11]))
    shape, layers = (channels, height, width), list[nn.Module]()
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["conv", "conv", "conv", "twice", "pool", "identity"]))
        if kind == "pool":
            height = width = draw(st.integers(2, 4))
            layers.append(AdaptiveAvgPool(height))
        elif kind == "twice":
            layers += 2 * [nn.Conv2d(channels, channels, 3, padding=1)]
        elif kind == "conv":
            size, padding = draw(st.sampled_from([(1, 0), (1, 1), (3, 1), (2, 1)]))
            stride = draw(st.integers(1, 2)) if size > 1 else 1  # see MIN_STRIDED_CHANNELS
            groups = draw(st.sampled_from([1, 1, channels]))
            outputs = groups * draw(st.sampled_from([1, 2, 16 // groups]))
            bias = draw(st.booleans())
            layers.append(nn.Conv2d(channels, outputs, size, stride, padding, groups=groups, bias=bias))
            channels = outputs
            height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
            if draw(st.booleans()):
                layers.append(nn.BatchNorm2d(channels))
        if layers and draw(st.booleans()):
            # Autograd needs the output of another ReLU, so that one must stay.
            may_overwrite = isinstance(layers[-1], nn.Conv2d | nn.BatchNorm2d)
            layers.append(nn.ReLU(inplace=may_overwrite and draw(st.booleans())))
    relu_first = bool(layers) and draw(st.booleans())
    net = RandomNet(
        nn.Sequential(*layers), channels * height * width, deep=draw(st.booleans()), relu_first=relu_first
    )
    return net.eval(), shape


def make_images(n: int, shape: tuple[int, int, int], layout: str) -> Tensor:
    channels, height, width = shape
    if layout == "sliced":
        return Rng(0).uniform(torch.empty(n, channels, height, 2 * width))[..., ::2]
    x = Rng(0).uniform(torch.empty(1 if layout == "expanded" else n, *shape))
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    return x.expand(n, -1, -1, -1)


def assert_same_bits(folded: Folded, x: Tensor) -> None:
    leaf, before = x.detach().requires_grad_(), x.clone()
    expected_logits = folded(leaf)
    g = Rng(1).normal(expected_logits.detach())
    (expected,) = torch.autograd.grad(expected_logits, leaf, g)
    found = folded.vjp(x)
    assert found is not None
    logits, pull_back = found
    assert torch.equal(logits, expected_logits)
    gradient = pull_back(g.clone())
    assert torch.equal(gradient, expected) and gradient.stride() == expected.stride()
    assert torch.equal(logits, expected_logits) and torch.equal(x, before)


def assert_same_attack(model: nn.Module, folded: Folded, x: Tensor) -> None:
    y = Rng(2).integers(len(x), 0, NUM_CLASSES)
    with_chain = perturb(Pgd(steps=2), model, x, y, THREAT, Rng(0)).x
    chain, folded.chain = folded.chain, None
    assert torch.equal(perturb(Pgd(steps=2), model, x, y, THREAT, Rng(0)).x, with_chain)
    folded.chain = chain


@settings(max_examples=300)
@given(networks(), st.sampled_from([1, 2, 7]), st.sampled_from(LAYOUTS), st.integers(0, 99))
def test_a_chain_has_the_bits_of_autograd(
    drawn: tuple[nn.Module, tuple[int, int, int]], n: int, layout: str, seed: int
):
    model, shape = drawn
    for name, tensor in model.named_parameters():
        tensor.data = Rng(seed).fold_in(name).normal(tensor.data) / 3
    x = make_images(n, shape, layout)
    folded = folded_copy(model, x)
    assert folded is not None
    event(f"has a chain: {folded.chain is not None}")
    if folded.chain is None:
        return
    assert_same_bits(folded, x)
    assert_same_attack(model, folded, x)
    if (fast := crafting_copy(folded, x)).chain is not None:
        assert_same_bits(fast, x)


def narrow_net() -> nn.Module:
    """Its second image has one channel, which has two memory layouts."""
    features = nn.Sequential(nn.Conv2d(3, 1, 1), nn.ReLU(), nn.Conv2d(1, 16, 1, padding=1), nn.ReLU())
    return RandomNet(features, 16 * 18 * 18, deep=False, relu_first=False).eval()


def pooled_net() -> nn.Module:
    """It pools before a grouped convolution, which computes in another order for another layout."""
    conv, grouped = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 1, groups=8, bias=False)
    features = nn.Sequential(conv, nn.ReLU(), AdaptiveAvgPool(4), grouped, nn.ReLU())
    return RandomNet(features, 256, deep=False, relu_first=False).eval()


@pytest.mark.parametrize("build", [narrow_net, pooled_net])
def test_layers_with_two_layouts_have_no_chain(build: Callable[[], nn.Module]):
    x = make_images(8, (3, 16, 16), "contiguous")
    with Rng(0).seed_global():
        model = build()
    folded = folded_copy(model, x)
    assert folded is not None and folded.chain is None
    assert crafting_copy(folded, x).chain is None


@pytest.mark.parametrize("n", [1, 7])
def test_a_faster_first_layer_before_flattening_gets_the_layout_of_autograd(n: int):
    """The gradient of flattening has another layout than the output of the ReLU."""
    x = make_images(n, (3, 9, 7), "sliced")
    with Rng(0).seed_global():
        features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        model = RandomNet(features, 16 * 9 * 7, deep=False, relu_first=False).eval()
    folded = folded_copy(model, x)
    assert folded is not None
    fast = crafting_copy(folded, x)
    assert fast.chain is not None and fast is not folded
    assert_same_bits(fast, x)
