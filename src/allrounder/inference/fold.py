"""The network that attacks craft on: an eval-mode copy, channels last, batch-norm folded into convolutions.

With running statistics a batch-norm is a fixed scale s = gamma / sqrt(var + eps) and shift per channel, so

    bn(conv(x; W, b)) = conv(x; s W, beta + s (b - mean)).

The structure is traced once per model; after that only the numbers are refreshed. What cannot be traced, or
does not agree with the original, is left alone: `frozen` then answers None and logs why.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.models.layers import Average, Skipping
from allrounder.rng import Draws
from allrounder.types import Classifier, Images, Logits

LOG = logging.getLogger("allrounder")
TOLERANCE = 1e-6
MOST_TRACES = 8
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN, NO_MATTER = (bool, int, float, str), ("training", "_is_full_backward_hook")
DRAWS = Draws(0).at("folding")
FOLDABLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: nn.BatchNorm2d,
    Skipping: nn.BatchNorm2d,
    nn.Linear: nn.BatchNorm1d,
}
"""Exact types only, since a subclass may compute something else."""


@final
class Unfoldable(Exception):
    """Why a network has no folded copy."""


@final
class Folded:
    """A folded copy, from images to logits, differentiable in the images alone.

    It holds nothing of the model. The next call of `frozen` for the same model, or for a sibling of it,
    overwrites its numbers.
    """

    def __init__(self, network: fx.GraphModule, pairs: tuple[tuple[str, str], ...]) -> None:
        self.network = network
        self.pairs = pairs
        folded = {f"{layer}.{kind}" for layer, _ in pairs for kind in ("weight", "bias")}
        self.copied = tuple((t, attrgetter(name)) for name, t in _tensors(network) if name not in folded)
        self.folds = tuple((network.get_submodule(one), *map(attrgetter, (one, norm))) for one, norm in pairs)

    def __call__(self, x: Images) -> Logits:
        """Images in any layout to logits; their gradient comes back in the same layout."""
        return self.through(self.network, x)

    def through(self, network: Classifier, x: Images) -> Logits:
        """The same by another form of the copy, such as a compiled one."""
        last = x.contiguous(memory_format=torch.channels_last)
        if last is not x and last.requires_grad:
            last.register_hook(Tensor.contiguous)
        return network(last)

    def refresh_(self, model: nn.Module) -> None:
        """Take over the numbers that a model of the same structure holds now."""
        with torch.no_grad():
            for target, read in self.copied:
                target.copy_(read(model))
            for target, layer, norm in self.folds:
                _fold_(target, layer(model), norm(model))


@dataclass(frozen=True, eq=False)
class Entry:
    """What is known of a model: its structure when it was last traced, and the copy if there can be one."""

    structure: tuple[object, ...]
    traces: int
    folded: Folded | None


@final
class Siblings:
    """Stands for copies of one network, which take turns with one folded copy."""


ENTRIES: WeakKeyDictionary[nn.Module | Siblings, Entry] = WeakKeyDictionary()
SIBLINGS: WeakKeyDictionary[nn.Module, Siblings] = WeakKeyDictionary()
TOLD: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def frozen(model: nn.Module, example: Images) -> Folded | None:
    """The folded copy of a model with its present numbers, or None where the model itself must be used.

    The copy computes what the model computes in eval mode, whatever mode the model is in; the model is not
    touched. `example` gives the shape of the images. A change of modules, shapes or plain settings is noticed
    and traced again; a change inside other attributes (a list, a function) is not.
    """
    if any(getattr(module, kind) for _, module in _modules(model) for kind in HOOKS):
        return _decline(model, "hooks are registered on it")
    structure, owner = _structure(model), SIBLINGS.get(model, model)
    entry = ENTRIES.get(owner) or Entry((), 0, None)
    if entry.structure != structure and entry.traces and owner is not model:
        # No longer like its siblings, so from now on it has a folded copy of its own.
        del SIBLINGS[model]
        owner, entry = model, Entry((), 0, None)
    if entry.structure != structure:
        if entry.traces == MOST_TRACES:
            return _decline(model, f"its structure changed {MOST_TRACES} times")
        entry = ENTRIES[owner] = Entry(structure, entry.traces + 1, _traced(model, example))
    if entry.folded is not None:
        entry.folded.refresh_(model)
    return entry.folded


def sibling(model: nn.Module) -> nn.Module:
    """A deep copy that takes turns with the model and its other siblings at one folded copy.

    So networks that are trained side by side pay for one. They must not craft at the same time.
    """
    twin = copy.deepcopy(model)
    SIBLINGS[twin] = SIBLINGS.setdefault(model, Siblings())
    return twin


def _decline(model: nn.Module, reason: str) -> None:
    told = TOLD.setdefault(model, set())
    if reason not in told:
        told.add(reason)
        LOG.info("%s: attacks use it as it is, not a folded copy: %s", type(model).__name__, reason)


def _traced(model: nn.Module, example: Images) -> Folded | None:
    """A new folded copy that was compared with the model, or None and a word in the log."""
    try:
        # Inference tensors could not be refreshed later; a forward that draws must not move the generator.
        with torch.inference_mode(False), DRAWS.ambient():
            _check_plain(model)
            folded = _fold(copy.deepcopy(model).eval())
            _check_agreement(folded, model, example)
    except Exception as error:  # Whatever the forward of a foreign network may raise.
        reason = "" if isinstance(error, Unfoldable) else f"it cannot be traced: {type(error).__name__}: "
        return _decline(model, f"{reason}{error}")
    return folded


def _fold(network: nn.Module) -> Folded:
    """Trace a network that nobody else uses, and drop every batch-norm that the layer before can absorb."""
    graph = _Tracer().trace(network)
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            raise Unfoldable("its forward makes tensors that a trace would keep for ever")
        if node.op == "call_method" and node.target == "view":
            # A view of contiguous memory need not be one of channels-last memory.
            node.target = "reshape"
    traced = fx.GraphModule(network, graph)
    pairs = tuple(_pairs(traced))
    for before, after in pairs:
        # Its own copy, as its weight may be tied to another layer's.
        layer = copy.deepcopy(traced.get_submodule(str(before.target)))
        layer.bias = nn.Parameter(cast(Tensor, layer.weight).new_zeros(len(cast(Tensor, layer.weight))))
        parent, _, name = str(before.target).rpartition(".")
        setattr(traced.get_submodule(parent), name, layer)
        after.replace_all_uses_with(before)
        graph.erase_node(after)
    traced.delete_all_unused_submodules()
    traced.recompile()
    cast(Any, traced.eval().requires_grad_(False)).to(memory_format=torch.channels_last)
    return Folded(traced, tuple((str(before.target), str(after.target)) for before, after in pairs))


@final
class _Tracer(fx.Tracer):
    """Calls the network with images alone, and keeps buffers as names, so that their values are followed."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers that can be folded are not looked into, nor those that look at shapes."""
        return type(m) in (*FOLDABLE, Average) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Further arguments of a forward keep their defaults, which may then decide between branches."""
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


def _pairs(traced: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Layers called once whose output goes into a batch-norm and nowhere else."""
    types = {name: type(module) for name, module in _modules(traced)}
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    for node in calls:
        before = node.args[0] if len(node.args) == 1 else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        alone = times[before.target] == 1 and len(before.users) == 1
        if alone and FOLDABLE.get(types[str(before.target)]) is types[str(node.target)]:
            yield before, node


def _fold_(target: Any, layer: Any, norm: Any) -> None:
    """Write a layer and the batch-norm behind it into the folded layer."""
    weight, bias = layer.weight, target.bias
    scale = (norm.running_var + norm.eps).rsqrt_()
    if norm.weight is not None:
        scale.mul_(norm.weight)
    torch.mul(weight, scale.view(-1, *[1] * (weight.dim() - 1)), out=target.weight)
    shift = -norm.running_mean if layer.bias is None else layer.bias - norm.running_mean
    torch.mul(shift, scale, out=bias)
    if norm.bias is not None:
        bias.add_(norm.bias)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return cast(Iterator[tuple[str, nn.Module]], model.named_modules())


def _structure(model: nn.Module) -> tuple[object, ...]:
    """What a trace depends on and can be compared: modules, plain settings, shapes, types, devices."""
    modules = [(name, type(module), *_settings(module)) for name, module in _modules(model)]
    return (*modules, *((name, t.shape, t.dtype, t.device) for name, t in _tensors(model)))


def _settings(module: nn.Module) -> Iterator[tuple[str, object]]:
    # Looked through before every attack, so nothing is made for the many attributes that are no settings.
    for name, setting in vars(module).items():
        if isinstance(setting, tuple):
            parts = cast(tuple[object, ...], setting)
            if all(isinstance(part, PLAIN) for part in parts):
                yield name, parts
        elif isinstance(setting, PLAIN) and name not in NO_MATTER:
            yield name, setting


def _check_plain(model: nn.Module) -> None:
    for name, module in _modules(model):
        if "quantized" in type(module).__module__:
            raise Unfoldable(f"{name} is quantised")
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise Unfoldable(f"{name} keeps no running statistics")
    for name, tensor in _tensors(model):
        if type(tensor) not in (Tensor, nn.Parameter):
            raise Unfoldable(f"{name} is a {type(tensor).__name__}, not a plain tensor")


def _check_agreement(folded: Folded, model: nn.Module, example: Images) -> None:
    """Compare logits and input gradients in float64, where rounding cannot excuse a difference.

    The numbers are shaken first: with the statistics of a fresh batch-norm every fold looks right.
    """
    plain = copy.deepcopy(model).to("cpu", torch.float64).eval()
    shake_(plain)
    twin = Folded(copy.deepcopy(folded.network).to("cpu", torch.float64), folded.pairs)
    twin.refresh_(plain)
    like = torch.empty(2, *example.shape[1:], dtype=torch.float64)
    outcomes: list[tuple[Tensor, Tensor]] = []
    for network in (plain, twin):
        x = DRAWS.at("x").uniform(like)
        with torch.enable_grad(), DRAWS.ambient():
            logits = network(x.requires_grad_())
            (gradient,) = torch.autograd.grad((logits * DRAWS.at("direction").normal(logits)).sum(), x)
        outcomes.append((logits.detach(), gradient))
    for what, one, other in zip(("logits", "input gradients"), *outcomes, strict=True):
        gap = (one - other).abs().max() / one.abs().max().clamp_min(torch.finfo(one.dtype).tiny)
        if not gap <= TOLERANCE:
            raise Unfoldable(f"its {what} and those of the copy differ by {gap:.1e} relatively")


def shake_(model: nn.Module) -> None:
    """Give batch-norm layers, and parameters that are all zero, numbers with which a wrong copy shows."""
    with torch.no_grad():
        for name, module in _modules(model):
            if isinstance(module, _BatchNorm):
                draws, mean, var = DRAWS.at("shake", name), module.running_mean, module.running_var
                assert mean is not None and var is not None
                mean.copy_(draws.at("mean").normal(mean) / 4)
                var.copy_(draws.at("var").uniform(var) / 4 + 0.1)
                for kind, tensor in module.named_parameters(recurse=False):
                    tensor.copy_(draws.at(kind).uniform(tensor) + 0.5)
        for name, tensor in model.named_parameters():
            if not tensor.any():
                tensor.copy_(DRAWS.at("shake", name).normal(tensor) / 4)
