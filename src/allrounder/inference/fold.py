"""The folded copy of a network: eval mode, channels_last, batch-norm folded into the layers before it.

In eval mode a batch-norm is a fixed scale s = gamma / sqrt(var + eps) and a fixed shift per channel, so

    bn(conv(x; W, b)) = conv(x; s W, beta + s (b - mean)).

The structure is traced once per model; after that only the parameters and buffers are refreshed. If a network
cannot be traced, or the copy disagrees with it, `folded_copy` returns None and logs the reason.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.inference.chain import Chain, Pullback, find_equal_chain
from allrounder.inference.discard import discard
from allrounder.models.layers import AdaptiveAvgPool, StridedConv1x1
from allrounder.rng import Rng
from allrounder.types import Images, Logits

LOG = logging.getLogger("allrounder")
TOLERANCE = 1e-6
"""The largest relative difference between a network and its folded copy, in float64."""
MAX_TRACES = 8
"""The number of traces after which a model whose structure keeps changing is not folded any more."""
HOOK_ATTRIBUTES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SETTING_TYPES = (bool, int, float, str)
"""Attributes of these types are compared to detect a change of structure."""
NO_SETTING_TYPES = frozenset((dict, OrderedDict, set, type(None)))
"""Types of most other attributes, which are passed over quickly."""
IGNORED_SETTINGS = ("training", "_is_full_backward_hook")
FOLD_RNG = Rng(0).fold_in("folding")
FOLDABLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: nn.BatchNorm2d,
    StridedConv1x1: nn.BatchNorm2d,
    nn.Linear: nn.BatchNorm1d,
}
"""Layers, each with the batch-norm that it can absorb. Exact types only: subclasses may compute otherwise."""


@final
class Unfoldable(Exception):
    """Raised with the reason why a network has no folded copy."""


@final
class Folded:
    """A folded copy of a model, from images to logits; only images get gradients.

    The next call of `folded_copy` for the model, or another of its fold group, overwrites its parameters.
    """

    chain: Chain | None = None
    """The operations of the network, if it has no branches and they give the same numbers."""

    def __init__(self, network: fx.GraphModule, pairs: tuple[tuple[str, str], ...]) -> None:
        self.network = network
        self.pairs = pairs
        folded = {f"{layer}.{kind}" for layer, _ in pairs for kind in ("weight", "bias")}
        self.copied = tuple((t, attrgetter(name)) for name, t in _tensors(network) if name not in folded)
        self.folds = tuple((network.get_submodule(a), attrgetter(a), attrgetter(b)) for a, b in pairs)

    def __call__(self, x: Images) -> Logits:
        """Compute logits; images may have any memory format, and the gradient gets the same one."""
        channels_last = x.contiguous(memory_format=torch.channels_last)
        if channels_last is not x and channels_last.requires_grad:
            channels_last.register_hook(Tensor.contiguous)
        return self.network(channels_last)

    def vjp(self, x: Images) -> tuple[Logits, Pullback] | None:
        """The logits, and the function from their gradient to that of x, without autograd and with the same
        numbers; None if the network has no chain, or under autocast. The function is called once."""
        if self.chain is None or torch.is_autocast_enabled("cpu"):
            return None
        channels_last = x.contiguous(memory_format=torch.channels_last)
        logits, pull_back = self.chain.vjp(channels_last)
        return logits, pull_back if channels_last is x else lambda g: pull_back(g).contiguous()

    def refresh_(self, model: nn.Module) -> None:
        """Copy the current parameters and buffers of a model of the same structure."""
        with torch.no_grad():
            for target, read in self.copied:
                target.copy_(read(model))
            for target, layer, norm in self.folds:
                _fold_batchnorm_(target, layer(model), norm(model))


@dataclass(frozen=True, eq=False)
class CachedFold:
    """The structure of a model at its last trace, the number of traces, and the copy if there is one."""

    structure: tuple[object, ...]
    traces: int
    folded: Folded | None


@final
class FoldGroup:
    """Identifies copies of one network that share one folded copy."""


CACHED_FOLDS: WeakKeyDictionary[nn.Module | FoldGroup, CachedFold] = WeakKeyDictionary()
"""The folded copies, by model or by fold group."""
FOLD_GROUPS: WeakKeyDictionary[nn.Module, FoldGroup] = WeakKeyDictionary()
"""The fold groups of models that belong to one."""
LOGGED_REASONS: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""The reasons that are already logged, by model."""


def folded_copy(model: nn.Module, example: Images) -> Folded | None:
    """The folded copy of a model with its current parameters, or None if the model has no copy.

    It computes what the model computes in eval mode. `example` gives the shape of the images. A change of
    modules, shapes or plain settings is detected and traced again; one inside a list or function is not.
    """
    structure, has_hooks = _structure(model)
    if has_hooks:
        return _log_unfoldable(model, "hooks are registered on it")
    owner = FOLD_GROUPS.get(model, model)
    cached = CACHED_FOLDS.get(owner) or CachedFold((), 0, None)
    if cached.structure != structure and cached.traces and owner is not model:
        # The model differs from its group now, so it leaves the group and gets its own copy.
        del FOLD_GROUPS[model]
        owner, cached = model, CachedFold((), 0, None)
    if cached.structure != structure:
        if cached.traces == MAX_TRACES:
            return _log_unfoldable(model, f"its structure changed {MAX_TRACES} times")
        cached = CachedFold(structure, cached.traces + 1, _trace_and_fold(model, example))
        CACHED_FOLDS[owner] = cached
    if cached.folded is not None:
        cached.folded.refresh_(model)
    return cached.folded


def copy_sharing_fold(model: nn.Module) -> nn.Module:
    """A deep copy that shares one folded copy with the model and its other copies, to save memory. They must
    not craft at the same time."""
    copied = copy.deepcopy(model)
    FOLD_GROUPS[copied] = FOLD_GROUPS.setdefault(model, FoldGroup())
    return copied


def _log_unfoldable(model: nn.Module, reason: str) -> None:
    """Log once per model and reason that it is not folded."""
    logged = LOGGED_REASONS.setdefault(model, set())
    if reason not in logged:
        logged.add(reason)
        LOG.info("%s: attacks use the network itself, not a folded copy: %s", type(model).__name__, reason)


def _trace_and_fold(model: nn.Module, example: Images) -> Folded | None:
    """Fold, and compare the copy with the model; log the reason and return None if that fails."""
    try:
        # Inference tensors could not be refreshed later. A forward that draws random numbers must not change
        # the global generator.
        with torch.inference_mode(False), FOLD_RNG.seed_global():
            _check_foldable(model)
            folded = _fold(copy.deepcopy(model).eval())
            try:
                _check_agreement(folded, model, example)
            except BaseException:
                with discard(folded.network):
                    raise
            folded.chain = find_equal_chain(folded.network, example)
    except Exception as error:  # The forward of an external network may raise anything.
        reason = "" if isinstance(error, Unfoldable) else f"it cannot be traced: {type(error).__name__}: "
        return _log_unfoldable(model, f"{reason}{error}")
    return folded


def _fold(network: nn.Module) -> Folded:
    """Trace a network, which is consumed, and remove every batch-norm that the layer before it can absorb."""
    graph = _Tracer().trace(network)
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            raise Unfoldable("its forward creates tensors, which a trace would keep as constants")
        if node.op == "call_method" and node.target == "view":
            # A view of contiguous memory need not be one of channels-last memory.
            node.target = "reshape"
    traced = fx.GraphModule(network, graph)
    pairs = tuple(_foldable_pairs(traced))
    for before, after in pairs:
        # Its own copy, as its weight may be tied to another layer's.
        layer: Any = copy.deepcopy(traced.get_submodule(str(before.target)))
        layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        parent, _, name = str(before.target).rpartition(".")
        setattr(traced.get_submodule(parent), name, layer)
        after.replace_all_uses_with(before)
        graph.erase_node(after)
    traced.delete_all_unused_submodules()
    traced.recompile()
    for module in traced.modules():
        # A copy of a network whose buffers share memory holds that of all of them, also of those folded away.
        module._buffers.update({name: b.clone() for name, b in module._buffers.items() if b is not None})
    cast(Any, traced.eval().requires_grad_(False)).to(memory_format=torch.channels_last)
    return Folded(traced, tuple((str(before.target), str(after.target)) for before, after in pairs))


@final
class _Tracer(fx.Tracer):
    """Traces a network called with images only; buffers stay attributes, so that they can be refreshed."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Also stop at foldable layers and at those that depend on shapes."""
        return type(m) in (*FOLDABLE, AdaptiveAvgPool) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Further arguments of a forward keep their defaults, so branches may depend on them."""
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


def _foldable_pairs(traced: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Pairs of a layer and a batch-norm, where the layer is called once and has no other consumer."""
    types = {name: type(module) for name, module in _modules(traced)}
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    num_calls = Counter(node.target for node in calls)
    for node in calls:
        before = node.args[0] if len(node.args) == 1 else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        used_once = num_calls[before.target] == 1 and len(before.users) == 1
        if used_once and FOLDABLE.get(types[str(before.target)]) is types[str(node.target)]:
            yield before, node


def _fold_batchnorm_(target: Any, layer: Any, norm: Any) -> None:
    """Write a layer and the batch-norm after it into the folded layer."""
    scale = (norm.running_var + norm.eps).rsqrt_()
    if norm.weight is not None:
        scale.mul_(norm.weight)
    torch.mul(layer.weight, scale.view(-1, *[1] * (layer.weight.dim() - 1)), out=target.weight)
    shift = -norm.running_mean if layer.bias is None else layer.bias - norm.running_mean
    torch.mul(shift, scale, out=target.bias)
    if norm.bias is not None:
        target.bias.add_(norm.bias)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return cast(Iterator[tuple[str, nn.Module]], model.named_modules())


def _structure(model: nn.Module) -> tuple[tuple[object, ...], bool]:
    """The properties that a trace depends on, and whether there are hooks: modules, plain settings, shapes,
    types, devices. This runs before every attack, so it visits every module and every attribute once."""
    entries: list[object] = []
    has_hooks = _visit(model, entries, {})
    return tuple(entries), has_hooks


def _visit(module: nn.Module, entries: list[object], numbers: dict[int, int]) -> bool:
    """Append what is to be known of a module. A module that occurs again is only named by its number."""
    if id(module) in numbers:
        entries.append(numbers[id(module)])
        return False
    numbers[id(module)] = len(numbers)
    fields: dict[str, object] = vars(module)
    has_hooks = any(fields.get(kind) for kind in HOOK_ATTRIBUTES)
    entries.append(type(module))
    for name, setting in fields.items():
        kind = type(setting)
        if kind in NO_SETTING_TYPES or name in IGNORED_SETTINGS:
            continue
        if isinstance(setting, tuple):
            items = cast(tuple[object, ...], setting)
            if all(isinstance(item, SETTING_TYPES) for item in items):
                entries.append((name, items))
        elif isinstance(setting, SETTING_TYPES):
            entries.append((name, setting))
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                entries.append((name, tensor.shape, tensor.dtype, tensor.device))
    for name, child in module._modules.items():
        if child is not None:
            entries.append(name)
            has_hooks = _visit(child, entries, numbers) or has_hooks
    entries.append(None)  # ends the module, so that entries tell children from siblings
    return has_hooks


def _check_foldable(model: nn.Module) -> None:
    for name, module in _modules(model):
        if "quantized" in type(module).__module__:
            raise Unfoldable(f"{name} is quantised")
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise Unfoldable(f"{name} keeps no running statistics")
    for name, tensor in _tensors(model):
        if type(tensor) not in (Tensor, nn.Parameter):
            raise Unfoldable(f"{name} is a {type(tensor).__name__}, not a plain tensor")


def _check_agreement(folded: Folded, model: nn.Module, example: Images) -> None:
    """Compare logits and input gradients of a model and its copy in float64, where rounding is negligible.
    Batch-norm is randomised first: with its initial statistics a wrong fold would not be noticed."""
    original = copy.deepcopy(model).to("cpu", torch.float64).eval()
    randomise_batchnorm_(original)
    copied = copy.deepcopy(folded.network).to("cpu", torch.float64)
    with discard(copied):
        _compare(original, Folded(copied, folded.pairs), example)


def _compare(original: nn.Module, refolded: Folded, example: Images) -> None:
    refolded.refresh_(original)
    like = torch.empty(2, *example.shape[1:], dtype=torch.float64)
    results: list[tuple[Tensor, Tensor]] = []
    for network in (original, refolded):
        x = FOLD_RNG.fold_in("x").uniform(like)
        with torch.enable_grad(), FOLD_RNG.seed_global():
            logits = network(x.requires_grad_())
            direction = FOLD_RNG.fold_in("direction").normal(logits)
            (gradient,) = torch.autograd.grad((logits * direction).sum(), x)
        results.append((logits.detach(), gradient))
    for name, expected, got in zip(("logits", "input gradients"), *results, strict=True):
        scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
        difference = (expected - got).abs().max() / scale
        if not difference <= TOLERANCE:
            raise Unfoldable(f"its {name} and those of the copy differ by {difference:.1e} relatively")


def randomise_batchnorm_(model: nn.Module) -> None:
    """Randomise batch-norm layers, and parameters that are all zero, so that a wrong copy is noticed."""
    with torch.no_grad():
        for name, module in _modules(model):
            if isinstance(module, _BatchNorm):
                rng = FOLD_RNG.fold_in("shake", name)
                mean, var = cast(Tensor, module.running_mean), cast(Tensor, module.running_var)
                mean.copy_(rng.fold_in("mean").normal(mean) / 4)
                var.copy_(rng.fold_in("var").uniform(var) / 4 + 0.1)
                for kind, tensor in module.named_parameters(recurse=False):
                    tensor.copy_(rng.fold_in(kind).uniform(tensor) + 0.5)
        for name, tensor in model.named_parameters():
            if not tensor.any():
                tensor.copy_(FOLD_RNG.fold_in("shake", name).normal(tensor) / 4)
