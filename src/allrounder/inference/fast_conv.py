"""Folded networks with faster convolutions on a CPU.

`WinogradConv` (winograd_layer.py) computes 3x3 convolutions of many channels with a quarter of the
multiplications. `StemConv` speeds up the gradient of the first convolution. Both are differentiable only in
their input.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from allrounder.inference.chain import Conv, Link, LinkKinds
from allrounder.inference.discard import discard
from allrounder.inference.fold import Folded
from allrounder.inference.winograd_layer import WinogradConv, is_plain, suits_winograd
from allrounder.models.layers import TensorOrProxy
from allrounder.rng import Rng
from allrounder.types import Images

LOG = logging.getLogger("allrounder")
MIN_SQUARED_NORM = 1e-30
TOLERANCES = (1e-3, 2e-2)
"""The largest relative differences of logits, and of gradients, which a ReLU switched by rounding changes."""
STEM_MAX_CHANNELS = 3
"""The largest number of input channels for which `StemConv` pays off."""


def with_fast_convs(folded: Folded, like: Images) -> Folded:
    """A copy of a folded network with faster layers, or the network itself if none of its layers is suited.

    The copy is used only if its logits and gradients agree with those of the network on random images of the
    shape of `like`. These images are always the same, so the choice does not depend on the data.
    """
    network = copy.deepcopy(folded.network)
    if not replace_convs(network):
        return folded
    fast = Folded(network, folded.pairs)
    if agree(folded, fast, like):
        return fast
    with discard(network):
        return folded


def replace_convs(network: nn.Module) -> dict[str, FastConv]:
    """Replace convolutions by faster ones, which share their parameters; return the new ones by name."""
    layers = list(cast(Iterable[tuple[str, nn.Module]], network.named_modules()))
    replaced: dict[str, FastConv] = {}
    for name, conv in ((name, layer) for name, layer in layers if isinstance(layer, nn.Conv2d)):
        if suited := [fast for suits, fast in FAST_CONVS if suits(conv)]:
            parent, _, leaf = name.rpartition(".")
            replaced[name] = suited[0](conv)
            setattr(network.get_submodule(parent), leaf, replaced[name])
    return replaced


def agree(folded: Folded, fast: Folded, like: Images) -> bool:
    """Whether logits and gradients agree on fixed random images of the shape of `like`; log it if not."""
    x = Rng(0).fold_in("quick").uniform(like)
    exact, approximate = _logits_and_grad(folded, x), _logits_and_grad(fast, x)
    for expected, got, tolerance in zip(exact, approximate, TOLERANCES, strict=True):
        squared_norm = max(float(expected.square().sum()), MIN_SQUARED_NORM)
        difference = math.sqrt(float((expected - got).square().sum()) / squared_norm)
        if not difference <= tolerance:
            LOG.info("attacks use plain convolutions: the fast ones differ by %.1e relatively", difference)
            return False
    return True


def _logits_and_grad(network: Folded, x: Images) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        logits = network(x)
        (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    return logits.detach(), gradient


def suits_stem(layer: nn.Conv2d) -> bool:
    """Whether `StemConv` can replace a convolution and pays off."""
    return is_plain(layer) and not isinstance(layer.padding, str) and layer.in_channels <= STEM_MAX_CHANNELS


@final
class StemConv(nn.Conv2d):
    """A convolution of few input channels with a faster gradient, for a layer that `suits_stem`.

    Libraries compute the gradient as a convolution whose output channels are padded to a full vector: an
    image uses 1 or 3 of 16. Here one matrix product gives the contribution of each output to each pixel under
    the filter, and these are added up over the positions of the filter.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        """Use the parameters of a layer, under the same names."""
        channels = (layer.in_channels, layer.out_channels)
        geometry: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
        super().__init__(*channels, **geometry, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.refresh_()

    def refresh_(self) -> None:
        """Call this after a change of the weight."""
        # One row for each input channel and position in the filter.
        rows = self.weight.detach().permute(1, 2, 3, 0)
        self.backward_filters = rows.reshape(-1, self.out_channels).contiguous()

    def convolve(self, x: Tensor) -> Tensor:
        """The convolution of x, without its gradient."""
        return F.conv2d(x, self.weight, self.bias, self.stride, cast(tuple[int, int], self.padding))

    @override
    def forward(self, input: TensorOrProxy) -> TensorOrProxy:
        return cast(Tensor, _StemFunction.apply(input, self))


@final
class _StemFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StemConv) -> Tensor:
        ctx.layer, ctx.size = layer, x.shape
        return layer.convolve(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return stem_input_grad(gradients[0], ctx.layer, ctx.size), None


@final
class StemLink(Link):
    """A `StemConv` in a chain."""

    def __init__(self, layer: StemConv) -> None:
        self.layer = layer

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.layer.convolve(x)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return stem_input_grad(g, self.layer, x.shape)


@final
class WinogradLink(Link):
    """A `WinogradConv` in a chain."""

    def __init__(self, layer: WinogradConv) -> None:
        self.layer = layer
        self.plain = Conv(layer)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.layer.convolve(x) if self.layer.pays_off(*x.shape[2:]) else self.plain.forward(x)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        is_plain = not self.layer.pays_off(*x.shape[2:])
        return self.plain.backward(g, x, y) if is_plain else self.layer.input_grad(g)


def stem_input_grad(g: Tensor, layer: StemConv, size: torch.Size) -> Tensor:
    """The gradient with respect to images of shape `size`, given the gradient g of the outputs."""
    (n, o, out_h, out_w), (_, c, h, w) = g.shape, size
    (kernel_h, kernel_w), (stride_h, stride_w) = layer.kernel_size, layer.stride
    top, left = cast(tuple[int, int], layer.padding)
    # One product per image: in one product for all, the position of an image would change its bits.
    flat = g.permute(0, 2, 3, 1).reshape(n, out_h * out_w, o)
    products = torch.bmm(layer.backward_filters.expand(n, -1, -1), flat.transpose(1, 2))
    contributions = products.view(n, c, kernel_h, kernel_w, out_h, out_w)
    # Pixels that no filter covers stay zero; the padding is cut off.
    padded = g.new_zeros(n, c, h + 2 * top, w + 2 * left)
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = slice(i, i + stride_h * (out_h - 1) + 1, stride_h)
            columns = slice(j, j + stride_w * (out_w - 1) + 1, stride_w)
            padded[:, :, rows, columns].add_(contributions[:, :, i, j])
    whole = padded[:, :, top : top + h, left : left + w]
    return whole.contiguous(memory_format=torch.channels_last)


FastConv: TypeAlias = WinogradConv | StemConv
FAST_CONVS: tuple[tuple[Callable[[nn.Conv2d], bool], Callable[[nn.Conv2d], FastConv]], ...] = (
    (suits_winograd, WinogradConv),
    (suits_stem, StemConv),
)
"""The faster layers, each with the test whether it can replace a convolution."""
FAST_LINKS: LinkKinds = {WinogradConv: WinogradLink, StemConv: StemLink}
"""The links of faster layers in chains."""
