"""The gradients of a network without branches, computed without autograd.

Autograd makes a node for each operation of each pass. In a small network, where an operation takes a few
microseconds, this counts. A chain calls the kernels of torch's autograd itself, so its numbers are the same
bit for bit. Parameters get no gradients, and a ReLU changes memory in place, forward and backward.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from typing_extensions import override

from allrounder.inference.discard import discard
from allrounder.models.layers import AdaptiveAvgPool
from allrounder.rng import Rng
from allrounder.types import Images

LOG = logging.getLogger("allrounder")
aten = cast(Any, torch.ops.aten)  # pyright: ignore[reportUnknownMemberType]
conv2d: Any = torch.conv2d
conv_backward = aten.convolution_backward.default
new_relu_backward = aten.threshold_backward.default
relu_backward = aten.threshold_backward.grad_input
pool_backward = aten._adaptive_avg_pool2d_backward.default

Pullback: TypeAlias = Callable[[Tensor], Tensor]
"""Turns the gradient of logits into that of images; called once."""
RELUS = (F.relu, torch.relu, F.relu_, torch.relu_, "relu", "relu_")
FLATTENS = (torch.flatten, "flatten")


class Link(ABC):
    """An operation with one input and one output."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""

    @abstractmethod
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the input x, given that of the output y."""


LinkKinds: TypeAlias = Mapping[type[nn.Module], Callable[[Any], Link]]
"""For a type of layer, what makes a link of such a layer."""
NO_KINDS: LinkKinds = MappingProxyType({})


@final
class Conv(Link):
    """A convolution with zeros as padding."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        geometry: Any = (layer.stride, layer.padding, layer.dilation)
        self.conv_options: Any = (*geometry, layer.groups)
        bias_sizes = None if layer.bias is None else [layer.out_channels]
        is_transposed, wanted = False, (True, False, False)  # the gradients of input, weight and bias
        self.backward_options: Any = (bias_sizes, *geometry, is_transposed, (0, 0), layer.groups, wanted)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, *self.conv_options)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return conv_backward(g, x, self.weight, *self.backward_options)[0]


@final
class Linear(Link):
    """A linear layer on a matrix."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return g.mm(self.weight)


@final
class Pool(Link):
    """Adaptive average pooling whose gradient has the memory format of the output."""

    def __init__(self, layer: AdaptiveAvgPool) -> None:
        self.size = layer.output_size

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.size)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        layout = torch.channels_last if y.stride(1) == 1 else torch.contiguous_format
        return pool_backward(g.contiguous(memory_format=layout), x)


@final
class Relu(Link):
    """A ReLU that overwrites its input, and backward the gradient of its output, unless that has another
    memory layout than the output: autograd returns a gradient in the layout of the output then."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if g.stride() != y.stride():
            return new_relu_backward(g, y, 0)
        return relu_backward(g, y, 0, grad_input=g)


@final
class Flatten(Link):
    """All dimensions but the first as one."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    @override
    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return g.reshape(x.shape)


@final
class Chain:
    """The operations of a network in order."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)

    def vjp(self, x: Images) -> tuple[Tensor, Pullback]:
        """The logits, and the vector-Jacobian product: the function from their gradient to that of x."""
        values = [x.detach()]
        with torch.no_grad():
            for link in self.links:
                values.append(link.forward(values[-1]))

        def pull_back(g: Tensor) -> Tensor:
            y = values.pop()
            with torch.no_grad():
                for link in reversed(self.links):
                    g, y = link.backward(g, values[-1], y), values.pop()
            return g

        return values[-1], pull_back


def find_chain(network: fx.GraphModule, kinds: LinkKinds = NO_KINDS) -> Chain | None:
    """The chain of a traced network from images to logits; None if it has branches or other operations, or a
    layer whose gradient could have another memory layout than with autograd."""
    links: list[Link] = []
    for before, node in pairwise(network.graph.nodes):
        if node.all_input_nodes != [before] or len(before.users) != 1:
            return None
        if node.op != "output" and not _is_identity(network, node):
            link = _link(network, node, kinds)
            # A ReLU overwrites its input, which must not be the images.
            is_first = all(isinstance(earlier, Flatten) for earlier in links)
            if link is None or (isinstance(link, Relu) and is_first):
                return None
            links.append(link)
    # A pullback must not need a layout of the gradient of the logits, nor overwrite it.
    return Chain(links) if links and isinstance(links[-1], Linear) and _flattens_pools(links) else None


def find_equal_chain(network: fx.GraphModule, example: Images, kinds: LinkKinds = NO_KINDS) -> Chain | None:
    """The chain of a traced network on a CPU, if it gives the bits of autograd on two random images of the
    shape of `example`, with random weights; None if not. `kinds` are the links of further layers."""
    if any(not tensor.is_cpu or tensor.dtype != torch.float32 for tensor in network.parameters()):
        return None
    try:
        chain = find_chain(network, kinds)
        if chain is None:
            return None
        checked = copy.deepcopy(network)
        of_copy = find_chain(checked, kinds)
        # The answer is kept for later calls, so it must not depend on the caller's autocast.
        with torch.autocast("cpu", enabled=False), discard(checked):
            is_equal = of_copy is not None and _equals_autograd(of_copy, checked, example)
    except Exception as error:  # The forward of an external network may raise anything; autograd may do it.
        # One reason is a linear layer on images, whose gradient is no matrix product.
        LOG.debug("attacks compute gradients with autograd: %s: %s", type(error).__name__, error)
        return None
    return chain if is_equal else None


def _equals_autograd(chain: Chain, network: fx.GraphModule, example: Images) -> bool:
    rng = Rng(0).fold_in("chain")
    x = rng.fold_in("x").uniform(torch.empty(2, *example.shape[1:], dtype=torch.float32))
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            fan_in = max(1, math.prod(parameter.shape[1:]))  # also of a number, or of no numbers
            parameter.copy_(rng.fold_in(name).normal(parameter) / math.sqrt(fan_in))
        logits, pull_back = chain.vjp(x)
        g = rng.fold_in("g").normal(logits)
        gradient = pull_back(g.clone())
    with torch.enable_grad():
        expected_logits = network(x.requires_grad_())
        # Not grad(logits, x, g), which imports torch's symbolic shapes: a fifth of the start of a run.
        (expected,) = torch.autograd.grad((expected_logits * g).sum(), x)
    same_bits = torch.equal(logits, expected_logits) and torch.equal(gradient, expected)
    return same_bits and gradient.stride() == expected.stride()


def _is_identity(network: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "call_module" and type(network.get_submodule(str(node.target))) is nn.Identity


def _flattens_pools(links: Sequence[Link]) -> bool:
    """Whether every pooling is followed by flattening; a ReLU in between changes no layout. Before another
    layer, a single image or channel can have two layouts, and libraries then compute in another order."""
    others = [link for link in links if not isinstance(link, Relu)]
    return all(isinstance(after, Flatten) for link, after in pairwise(others) if isinstance(link, Pool))


def _link(network: fx.GraphModule, node: fx.Node, kinds: LinkKinds) -> Link | None:
    """The operation of a node, or None if a chain has no such operation."""
    if node.op == "call_module":
        module: Any = network.get_submodule(str(node.target))
        if isinstance(module, nn.Conv2d) and module.out_channels == 1:
            return None  # one channel has two layouts, and libraries then compute in another order
        if (
            type(module) is nn.Conv2d
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            return Conv(module)
        if type(module) is AdaptiveAvgPool and module.output_size > 1:  # torch computes a size of 1 as a mean
            return Pool(module)
        if type(module) is nn.ReLU:
            return Relu()
        if type(module) is nn.Linear:
            return Linear(module)
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return Flatten()
        kind = kinds.get(cast(type[nn.Module], type(module)))
        return None if kind is None else kind(module)
    if node.target in RELUS:
        return Relu()
    is_flatten = node.target in FLATTENS and node.args[1:] == (1,) and not node.kwargs
    return Flatten() if is_flatten else None
