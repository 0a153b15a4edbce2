"""Crafting on folded networks with faster convolutions, for the models of a training that asks for it.

The copy with faster layers shares its parameters with the folded copy, so that a new set of weights costs
only the transforms of the filters, once per attack. Whether it is used depends on the structure of the
network and on the machine alone, not on the weights, so that a resumed training decides in the same way.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from allrounder.inference.chain import find_equal_chain
from allrounder.inference.discard import discard
from allrounder.inference.fast_conv import FAST_LINKS, FastConv, agree, replace_convs
from allrounder.inference.fold import Folded, folded_copy, randomise_batchnorm_
from allrounder.inference.winograd_layer import WinogradConv
from allrounder.rng import Rng
from allrounder.types import Images

CHECKED_IMAGES = 2
"""The number of random images that the copies are compared on."""


@final
@dataclass(frozen=True, eq=False)
class FastCopy:
    """A folded network with faster layers, and these layers by name."""

    folded: Folded
    layers: dict[str, FastConv]


FAST_MODELS: WeakSet[nn.Module] = WeakSet()
"""The models that attacks run on with faster convolutions."""
FAST_COPIES: WeakKeyDictionary[Folded, FastCopy | None] = WeakKeyDictionary()
"""The copies with faster layers, by folded network; None if there is no layer that suits, or no agreement."""


def craft_with_fast_convs(model: nn.Module) -> None:
    """Let later attacks in eval mode run on a copy of this model with faster convolutions, if it suits."""
    FAST_MODELS.add(model)


def crafting_copy(folded: Folded, example: Images) -> Folded:
    """A copy of a folded network with faster layers and its current weights, or the network itself."""
    fast = _fast_copy(folded, example)
    if fast is None:
        return folded
    for layer in fast.layers.values():
        layer.refresh_()
    return fast.folded


def describe_fast_convs(model: nn.Module, example: Images) -> dict[str, str]:
    """The algorithms of the layers that are faster for images of the shape of `example`, by name."""
    folded = folded_copy(model, example)
    fast = None if folded is None else _fast_copy(folded, example)
    if fast is None:
        return {}
    sizes: dict[nn.Module, torch.Size] = {}

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes[layer] = inputs[0].shape

    hooks = [layer.register_forward_pre_hook(record) for layer in fast.layers.values()]
    with torch.no_grad():
        fast.folded(torch.zeros_like(example[:1]))
    for hook in hooks:
        hook.remove()
    algorithms = {name: _name_algorithm(layer, *sizes[layer][2:]) for name, layer in fast.layers.items()}
    return {name: algorithm for name, algorithm in algorithms.items() if algorithm is not None}


def _name_algorithm(layer: FastConv, height: int, width: int) -> str | None:
    if not isinstance(layer, WinogradConv):
        return "input gradient as a matrix product"
    return f"Winograd F(4x4, 3x3) in {layer.library}" if layer.pays_off(height, width) else None


def _fast_copy(folded: Folded, example: Images) -> FastCopy | None:
    if folded not in FAST_COPIES:
        # Inference tensors could not be refreshed later.
        with torch.inference_mode(False):
            FAST_COPIES[folded] = _make_fast_copy(folded, example)
    return FAST_COPIES[folded]


def _make_fast_copy(folded: Folded, example: Images) -> FastCopy | None:
    exact = Folded(copy.deepcopy(folded.network), folded.pairs)
    _randomise_(exact.network)
    fast = _replace_layers(exact)
    like = torch.empty(CHECKED_IMAGES, *example.shape[1:], dtype=example.dtype)
    with discard(exact.network, fast.folded.network):
        if not fast.layers or not agree(exact, fast.folded, like):
            return None
    copied = _replace_layers(folded)
    network = copied.folded.network
    copied.folded.chain = find_equal_chain(network, example, FAST_LINKS)
    return copied


def _replace_layers(folded: Folded) -> FastCopy:
    """The same network with faster layers, in the same memory."""
    shared: dict[int, Any] = {id(t): t for t in (*folded.network.parameters(), *folded.network.buffers())}
    network = copy.deepcopy(folded.network, shared)
    layers = replace_convs(network)
    return FastCopy(Folded(network, folded.pairs), layers)


def _randomise_(network: nn.Module) -> None:
    """Fixed random weights, whose variance keeps the scale of activations."""
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            fan_in = max(1, math.prod(tensor.shape[1:])) if tensor.dim() > 1 else 2
            tensor.copy_(Rng(0).fold_in("quick", name).normal(tensor) * (2 / fan_in) ** 0.5)
    randomise_batchnorm_(network)
