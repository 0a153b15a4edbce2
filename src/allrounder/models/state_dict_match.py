"""Matches the tensor names of public checkpoints to those of a network.

Public checkpoints differ in how they wrap their weights and in what they call the same layer. A table of
rewrites brings the names of file and network to one spelling. Then every tensor of the network must match
exactly one tensor of the file, of the same shape, and no tensor of the file may be left over.

Names and shapes do not identify a network completely: activations, pooling, and where a shortcut starts have
neither. Compare the natural accuracy with the published one before trusting such a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import did_you_mean
from allrounder.config.text import shorten
from allrounder.errors import RunError
from allrounder.nn.state import all_finite, copy_, weights_of
from allrounder.types import NamedTensors, Weights

Rewrites: TypeAlias = tuple[tuple[str, str], ...]

WRAPPER_PREFIXES: Rewrites = ((r"^(?:(?:module|_orig_mod)\.)+", ""),)
"""Prefixes that nn.DataParallel and torch.compile add to every name."""
MODEL_PREFIXES: Rewrites = ((r"^(?:(?:module|_orig_mod|model|net|network|backbone|1)\.)+", ""),)
"""A network inside a wrapper that only prepares the images; "1" is the second module of a Sequential."""
PART_PREFIXES: Rewrites = (
    (r"^(?:(?:module|_orig_mod|model|base_model|net|network|backbone|encoder|1)\.)+", ""),
)
"""The same, with names that may also be those of one part of several, such as an encoder before a head."""
SPELLING_VARIANTS: Rewrites = (
    # The normalisation: RobustBench (mu, sigma), MadryLab (normalizer.new_mean), a Sequential (0.mean).
    (r"^(?:\w+\.)?(?:mean|mu|new_mean)$", "normalise.mean"),
    (r"^(?:\w+\.)?(?:std|sigma|new_std)$", "normalise.std"),
    # The shortcut of a block: torchvision (downsample.0), the CIFAR networks (shortcut.0).
    (r"(?<=\.)downsample\.", "shortcut."),
    # The last layer: torchvision and TRADES (fc), timm (fc, head, head.fc, classifier), the CIFAR networks
    # (linear); "1" follows a dropout in a Sequential.
    (r"^(?:head\.)?(?:fc|last_linear|linear|classifier|head)\.(?:1\.)?(weight|bias)$", r"linear.\1"),
)
"""Regular expressions and replacements, applied in turn to every name of the file and of the network."""
WHOLE_NETWORK_SPELLINGS: Rewrites = (*MODEL_PREFIXES, *SPELLING_VARIANTS)
"""Does not take a part of a network for all of it."""
REWRITE_STAGES: tuple[Rewrites, ...] = (
    (),
    WRAPPER_PREFIXES,
    MODEL_PREFIXES,
    WHOLE_NETWORK_SPELLINGS,
    (*PART_PREFIXES, *SPELLING_VARIANTS),
)
"""Tried in turn. Unchanged names come first, because a custom network may use any names."""
NEUTRAL_NORMALISATION = {"normalise.mean": 0.0, "normalise.std": 1.0}
"""Names of normalisation constants, and the values that have no effect."""
IGNORED_NAMES = r"(?:^|\.)n_averaged$|^sub_block1\.|^attacker\."
"""Tensors that a file may hold in addition: the counter of averaged models, a block that TRADES builds and
never runs, and MadryLab's second name for the same network."""
BATCH_COUNTER = "num_batches_tracked"
"""BatchNorm's counter: missing in old files, and without effect in evaluation."""
MAX_LISTED = 4
"""Names listed in an error message."""
MAX_TABLES, MAX_TABLE_DEPTH = 10_000, 16
"""Tables in a file, and tables inside each other; a hostile file may hold a table inside itself."""
MAX_EXPANDED_BYTES = 2**20
"""Size of a tensor that repeats the numbers it is stored with; a hostile one repeats one number forever."""


def find_state_dict(raw: Mapping[str, object], *, key: str | None = None, source: str = "weights") -> Weights:
    """Find the state dict inside a checkpoint, however it is nested. If there are several, such as a
    network's and its moving average's, `key` must select one: they are different networks."""
    _check_tables(raw, source)
    state_dicts = dict(_find_state_dicts(raw, ""))
    names = _summarise(state_dicts)
    if key is not None:
        if key in state_dicts:
            return _check_plain(state_dicts[key], source)
        hint = did_you_mean(key, state_dicts)
        raise RunError(f'{source}: holds no weights "{key}" (there are: {names}){hint}; choose one')
    if not state_dicts:
        raise RunError(
            f"{source}: holds no weights (it has: {_summarise(raw)}), expected tensors by name; "
            "save network.state_dict()"
        )
    if len(state_dicts) > 1:
        raise RunError(f"{source}: holds {len(state_dicts)} sets of weights ({names}); choose one by its key")
    return _check_plain(next(iter(state_dicts.values())), source)


def read_normalisation(raw: NamedTensors) -> dict[str, tuple[float, ...]]:
    """The normalisation constants that a state dict holds, under "mean" and "std"."""
    tensors = {_rewrite(name): tensor for name, tensor in raw.items()}
    return {
        name.removeprefix("normalise."): tuple(cast(list[float], tensors[name].double().flatten().tolist()))
        for name in NEUTRAL_NORMALISATION
        if name in tensors
    }


def match_state_dict(
    network: nn.Module, raw: Mapping[str, object], *, key: str | None = None, source: str = "weights"
) -> Weights:
    """Return the tensors of a checkpoint under the names of a network, including normalisation constants.

    Raises RunError unless names and shapes match one to one. Normalisation constants in the file need a
    normalisation layer in the network, unless they have no effect.
    """
    ours = _fillable_tensors(network)
    theirs = find_state_dict(raw, key=key, source=source)
    # Reversed: if no stage fits, the last one gives the best error message.
    match = min(
        [_match_names(ours, theirs, rewrites) for rewrites in reversed(REWRITE_STAGES)],
        key=lambda match: match.num_errors,
    )
    if match.num_errors:
        message = match.error_message(ours, theirs)
        raise RunError(f"{source}: does not fit {type(network).__name__}: {message}")
    _check_normalisation(match.constants, theirs, source)
    converted = {name: _convert_like(theirs[match.pairs[name]], ours[name]) for name in match.pairs}
    if not all_finite(converted):
        bad = [name for name, tensor in converted.items() if not all_finite({name: tensor})]
        raise RunError(
            f"{source}: holds NaN or infinite numbers ({_summarise(bad)}); download the file again"
        )
    return {name: converted.get(name, tensor.clone()) for name, tensor in ours.items()}


def load_matched_(
    network: nn.Module, raw: Mapping[str, object], *, key: str | None = None, source: str = "weights"
) -> None:
    """Load a checkpoint into a network, with names matched by `match_state_dict`."""
    copy_(_fillable_tensors(network), match_state_dict(network, raw, key=key, source=source))


@final
@dataclass(frozen=True)
class NameMatch:
    """The match between the tensor names of a network and of a file after some rewrites."""

    pairs: dict[str, str]
    """From names of the network to names of the file."""
    missing: list[str]
    """Names of the network without a counterpart."""
    unexpected: list[str]
    """Names of the file without a counterpart."""
    mismatched: list[str]
    """Names of the network whose counterpart has another shape or dtype."""
    constants: dict[str, str]
    """Normalisation constants that only the file has: from rewritten names to names of the file."""

    @property
    def num_errors(self) -> int:
        """The number of tensors that do not match."""
        return len(self.missing) + len(self.unexpected) + len(self.mismatched)

    def error_message(self, ours: NamedTensors, theirs: NamedTensors) -> str:
        """List what does not match and say what to do."""
        problems: list[str] = []
        if self.missing:
            hint = did_you_mean(self.missing[0], self.unexpected)
            names = _summarise(self.missing)
            problems.append(f"{len(self.missing)} tensors of the network are missing ({names}{hint})")
        if self.unexpected:
            names = _summarise(self.unexpected)
            problems.append(f"{len(self.unexpected)} of the file are left over ({names})")
        if self.mismatched:
            pairs = [(name, theirs[self.pairs[name]], ours[name]) for name in self.mismatched]
            shapes = [
                f"{name} is {_describe(got)}, expected {_describe(tensor)}" for name, got, tensor in pairs
            ]
            problems.append(f"{len(self.mismatched)} have another shape ({_summarise(shapes)})")
        return (
            f"{', '.join(problems)}; choose the architecture and the number of classes that the file was "
            'made with, or name the network itself: "package.module:factory"'
        )


def _check_tables(raw: Mapping[Any, object], source: str) -> None:
    """Raise RunError if a file holds so many tables, or so deep, that to look through them takes forever."""
    level, count = [raw], 0
    for _ in range(MAX_TABLE_DEPTH):
        count += len(level)
        if count > MAX_TABLES:
            break
        entries = [value for table in level for name, value in table.items() if isinstance(name, str)]
        level = [cast(Mapping[Any, object], value) for value in entries if isinstance(value, Mapping)]
        if not level:
            return
    limits = f"more than {MAX_TABLES:,} tables, or more than {MAX_TABLE_DEPTH} inside each other"
    raise RunError(f"{source}: holds {limits}; save network.state_dict()")


def _check_plain(tensors: Weights, source: str) -> Weights:
    """Return tensors that are arrays of numbers; raise RunError for sparse, nested, quantized or meta ones,
    and for those that are much larger than what is stored of them."""
    for name, tensor in tensors.items():
        is_array = tensor.layout == torch.strided and tensor.device.type != "meta"
        if not is_array or tensor.is_nested or tensor.is_quantized:
            problem = "is sparse, nested, quantized or empty, expected an array of numbers"
            raise RunError(f"{source}: {shorten(name)} {problem}; save network.state_dict()")
        size = tensor.numel() * tensor.element_size()
        if size > max(tensor.untyped_storage().nbytes(), MAX_EXPANDED_BYTES):
            problem = f"has the shape {tuple(tensor.shape)}, but only repeats a few numbers"
            raise RunError(f"{source}: {shorten(name)} {problem}; save network.state_dict()")
    return tensors


def _find_state_dicts(raw: Mapping[Any, object], path: str) -> Iterator[tuple[str, Weights]]:
    """Yield every mapping from names to tensors, at least one of them a matrix, with its dotted key."""
    # Optimisers store their tensors under integer keys.
    named = {name: value for name, value in raw.items() if isinstance(name, str)}
    inner = [
        entry
        for name, value in named.items()
        if isinstance(value, Mapping)
        for entry in _find_state_dicts(cast(Mapping[Any, object], value), f"{path}{name}.")
    ]
    tensors = {name: value.detach() for name, value in named.items() if isinstance(value, Tensor)}
    if inner:
        yield from inner
    elif any(tensor.ndim > 1 for tensor in tensors.values()):
        yield path.removesuffix("."), tensors


def _fillable_tensors(network: nn.Module) -> Weights:
    """The weights, and normalisation constants even if they are not in the state dict."""
    constants = {name: buffer for name, buffer in network.named_buffers() if _is_normalisation(name)}
    return {**weights_of(network), **constants}


def _is_normalisation(name: str) -> bool:
    return _rewrite(name, WHOLE_NETWORK_SPELLINGS) in NEUTRAL_NORMALISATION


def _rewrite(name: str, rewrites: Rewrites = REWRITE_STAGES[-1]) -> str:
    for pattern, replacement in rewrites:
        name = re.sub(pattern, replacement, name)
    return name


def _match_names(ours: NamedTensors, theirs: NamedTensors, rewrites: Rewrites) -> NameMatch:
    """Match the names of a network (`ours`) to those of a file (`theirs`) after some rewrites."""
    # If two names are rewritten to the same one, the last wins here, and the other counts as an error below.
    our_names = {_rewrite(name, rewrites): name for name in ours}
    their_names = {_rewrite(name, rewrites): name for name in theirs}
    pairs = {name: their_names[word] for word, name in our_names.items() if word in their_names}
    file_only = {word: name for word, name in their_names.items() if word not in our_names}
    constants = {word: name for word, name in file_only.items() if word in NEUTRAL_NORMALISATION}
    used = {*pairs.values(), *constants.values()}
    unmatched = [name for name in ours if name not in pairs and not name.endswith(BATCH_COUNTER)]
    unused = [name for name in theirs if name not in used]
    return NameMatch(
        pairs=pairs,
        # The network keeps its own constants if the file has none.
        missing=[name for name in unmatched if not _is_normalisation(name)],
        unexpected=[name for name in unused if not re.search(IGNORED_NAMES, _rewrite(name))],
        mismatched=[name for name in pairs if not _is_compatible(name, ours[name], theirs[pairs[name]])],
        constants=constants,
    )


def _is_compatible(name: str, ours: Tensor, theirs: Tensor) -> bool:
    if _is_normalisation(name):
        return theirs.numel() in (1, ours.numel())
    return ours.shape == theirs.shape and ours.is_floating_point() <= theirs.is_floating_point()


def _convert_like(theirs: Tensor, ours: Tensor) -> Tensor:
    """Convert to the dtype and shape of the network's tensor; a single constant is repeated per channel."""
    tensor = theirs.to(ours.dtype)
    return (
        tensor.reshape(ours.shape) if tensor.numel() == ours.numel() else tensor.flatten().expand(ours.shape)
    )


def _check_normalisation(constants: Mapping[str, str], theirs: NamedTensors, source: str) -> None:
    """Raise RunError for constants of the file that have an effect and no layer in the network."""
    if all(bool(torch.all(theirs[name] == NEUTRAL_NORMALISATION[word])) for word, name in constants.items()):
        return
    rounded = {
        name: [round(float(number), 6) for number in theirs[name].flatten()] for name in constants.values()
    }
    values = ", ".join(f"{name} = {numbers}" for name, numbers in rounded.items())
    raise RunError(
        f"{source}: its network normalises the images ({values}), this one does not; "
        "build it with these numbers as mean and std"
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _summarise(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = [shorten(str(name)) or "the whole file" for name in names]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return (", ".join(listed[:MAX_LISTED]) + more) or "nothing"
