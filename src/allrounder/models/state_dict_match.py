"""Weights of public networks under the names of ours.

Public networks differ in what they wrap their weights in and in what they call the same layer. A table of
rewrites brings the names of a file and of a network to one spelling; then every tensor of the network must
find exactly one of the file, of the same shape, and nothing may be left over.

Names and shapes do not tell everything: an activation, a pooling, or where a shortcut starts has neither.
Compare the natural accuracy with the published one before trusting a network that was loaded this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.config.fields import nearest
from allrounder.errors import RunError
from allrounder.nn.state import Weights, all_finite, copy_, weights_of

Rewrites: TypeAlias = tuple[tuple[str, str], ...]

WRAPPED: Rewrites = ((r"^(?:(?:module|_orig_mod)\.)+", ""),)
"""What parallel and compiled networks put before every name."""
SPELLED: Rewrites = (
    # The network inside another that only prepares the images; "1" is the second part of a Sequential.
    (r"^(?:(?:module|_orig_mod|model|net|network|backbone|1)\.)+", ""),
    # The normalisation: RobustBench (mu, sigma), MadryLab (normalizer.new_mean), a Sequential (0.mean).
    (r"^(?:\w+\.)?(?:mean|mu|new_mean)$", "normalise.mean"),
    (r"^(?:\w+\.)?(?:std|sigma|new_std)$", "normalise.std"),
    # The shortcut of a block: torchvision (downsample.0), the CIFAR networks (shortcut.0).
    (r"(?<=\.)downsample\.", "shortcut."),
    # The last layer: torchvision and TRADES (fc), the CIFAR networks (linear).
    (r"^(?:fc|linear|classifier|head)\.(weight|bias)$", r"linear.\1"),
)
"""Applied in turn to every name of the file and of the network."""
STAGES: tuple[Rewrites, ...] = ((), WRAPPED, (*WRAPPED, *SPELLED))
"""Tried in turn: the names as they are come first, because a network of one's own may be called anything."""
CONSTANTS = {"normalise.mean": 0.0, "normalise.std": 1.0}
"""The numbers of a normalisation, and those that change nothing."""
UNUSED = r"(?:^|\.)n_averaged$|^sub_block1\.|^attacker\."
"""What a file may hold besides: a counter of averages, a block that TRADES makes and never runs, and
MadryLab's second name for the same network."""
COUNTER = "num_batches_tracked"
"""Old files do not have it, and it changes nothing in evaluation."""
SHOWN = 4


def tensors_of(raw: Mapping[str, object], *, key: str | None = None, source: str = "weights") -> Weights:
    """The named tensors inside a checkpoint, whatever wraps them.

    If there are several sets, such as a network's and its moving average's, `key` chooses one: they are
    different networks, and nobody else can know which is meant.
    """
    sets = dict(_sets(raw, ""))
    if key is not None and key not in sets:
        hint = nearest(key, sets)
        raise RunError(f'{source}: holds no weights "{key}" (there are: {_some(sets)}){hint}; choose one')
    if not sets:
        raise RunError(
            f"{source}: holds no weights (it has: {_some(raw)}), expected tensors by name; "
            "save network.state_dict()"
        )
    if key is None and len(sets) > 1:
        raise RunError(f"{source}: holds {len(sets)} sets of weights ({_some(sets)}); choose one by its key")
    return sets[key] if key is not None else next(iter(sets.values()))


def constants_of(raw: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """The "mean" and "std" with which a file's network normalises its images, as far as the file says."""
    spelled = {_spell(name, STAGES[-1]): tensor for name, tensor in raw.items()}
    return {
        name.removeprefix("normalise."): tuple(cast(list[float], spelled[name].double().flatten().tolist()))
        for name in CONSTANTS
        if name in spelled
    }


def fit(
    network: nn.Module, raw: Mapping[str, object], *, key: str | None = None, source: str = "weights"
) -> Weights:
    """The tensors of a checkpoint under the names of a network: all that it has, and its normalisation's.

    Raises RunError where names or shapes do not meet one to one. A normalisation in the file goes into the
    network's; a network without one is refused, unless it would change nothing.
    """
    ours, theirs = _places(network), tensors_of(raw, key=key, source=source)
    # The last stage names things best where none of them fits.
    met = min([_meet(ours, theirs, rewrites) for rewrites in reversed(STAGES)], key=lambda met: met.faults)
    if met.faults:
        raise RunError(f"{source}: does not fit {type(network).__name__}: {met.complaint(ours, theirs)}")
    _check_constants(met.constants, theirs, source)
    fitted = {name: _shaped(theirs[met.pairs[name]], ours[name]) for name in met.pairs}
    if not all_finite(fitted):
        odd = [name for name, tensor in fitted.items() if not all_finite({name: tensor})]
        raise RunError(f"{source}: holds NaN or infinite numbers ({_some(odd)}); get the file again")
    return {name: fitted.get(name, tensor.clone()) for name, tensor in ours.items()}


def load_(
    network: nn.Module, raw: Mapping[str, object], *, key: str | None = None, source: str = "weights"
) -> None:
    """network <- the weights of a checkpoint, as `fit` finds them."""
    copy_(_places(network), fit(network, raw, key=key, source=source))


@final
@dataclass(frozen=True)
class Meeting:
    """How the names of a network and of a file meet after some rewrites."""

    pairs: dict[str, str]
    """For each name of the network, that of the file."""
    missing: list[str]
    """Names of the network without a counterpart."""
    left: list[str]
    """Names of the file without a counterpart."""
    odd: list[str]
    """Names of the network whose counterpart has another shape."""
    constants: dict[str, str]
    """A normalisation that only the file has."""

    @property
    def faults(self) -> int:
        """How many tensors do not meet."""
        return len(self.missing) + len(self.left) + len(self.odd)

    def complaint(self, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str:
        """What does not meet, and what to do."""
        said: list[str] = []
        if self.missing:
            hint = nearest(self.missing[0], self.left)
            said.append(
                f"{len(self.missing)} tensors of the network are missing ({_some(self.missing)}{hint})"
            )
        if self.left:
            said.append(f"{len(self.left)} of the file are left over ({_some(self.left)})")
        if self.odd:
            shapes = [
                f"{name} is {_kind(theirs[self.pairs[name]])}, expected {_kind(ours[name])}"
                for name in self.odd
            ]
            said.append(f"{len(self.odd)} have another shape ({_some(shapes)})")
        return (
            f"{', '.join(said)}; choose the architecture and the number of classes that the file was made "
            'with, or name the network itself: "package.module:factory"'
        )


def _sets(raw: Mapping[Any, object], path: str) -> Iterator[tuple[str, Weights]]:
    """Every set of named tensors, by its dotted key; a set has at least one matrix, unlike other records."""
    # Optimisers keep their tensors under numbers.
    texts = {name: value for name, value in raw.items() if isinstance(name, str)}
    inner = [
        found
        for name, value in texts.items()
        if isinstance(value, Mapping)
        for found in _sets(cast(Mapping[Any, object], value), f"{path}{name}.")
    ]
    tensors = {name: value.detach() for name, value in texts.items() if isinstance(value, Tensor)}
    if inner:
        yield from inner
    elif any(tensor.ndim > 1 for tensor in tensors.values()):
        yield path.removesuffix("."), tensors


def _places(network: nn.Module) -> Weights:
    """The live tensors to fill: the weights, and the normalisation even if it is no part of them."""
    constants = {
        name: buffer for name, buffer in network.named_buffers() if _spell(name, STAGES[-1]) in CONSTANTS
    }
    return {**weights_of(network), **constants}


def _spell(name: str, rewrites: Rewrites) -> str:
    for pattern, replacement in rewrites:
        name = re.sub(pattern, replacement, name)
    return name


def _meet(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], rewrites: Rewrites) -> Meeting:
    # Of two names with one spelling only the last is kept here, so that the other counts as a fault below.
    one, other = ({_spell(name, rewrites): name for name in side} for side in (ours, theirs))
    pairs = {one[word]: other[word] for word in one if word in other}
    constants = {word: name for word, name in other.items() if word in CONSTANTS and word not in one}
    taken = {*pairs.values(), *constants.values()}
    missing = [name for name in ours if name not in pairs and not name.endswith(COUNTER)]
    left = [name for name in theirs if name not in taken]
    return Meeting(
        pairs=pairs,
        # The network's own constants stay where the file has none.
        missing=[name for name in missing if _spell(name, STAGES[-1]) not in CONSTANTS],
        left=[name for name in left if not re.search(UNUSED, _spell(name, STAGES[-1]))],
        odd=[name for name, their in pairs.items() if not _alike(name, ours[name], theirs[their])],
        constants=constants,
    )


def _alike(name: str, ours: Tensor, theirs: Tensor) -> bool:
    if _spell(name, STAGES[-1]) in CONSTANTS:
        return theirs.numel() in (1, ours.numel())
    return ours.shape == theirs.shape and ours.is_floating_point() <= theirs.is_floating_point()


def _shaped(theirs: Tensor, ours: Tensor) -> Tensor:
    """In the network's type and shape; one constant is every channel's."""
    tensor = theirs.to(ours.dtype)
    return (
        tensor.reshape(ours.shape) if tensor.numel() == ours.numel() else tensor.flatten().expand(ours.shape)
    )


def _check_constants(constants: Mapping[str, str], theirs: Mapping[str, Tensor], source: str) -> None:
    """Raise if the file's network normalises its images and ours does not."""
    if all(bool(torch.all(theirs[name] == CONSTANTS[word])) for word, name in constants.items()):
        return
    said = ", ".join(
        f"{name} = {[round(float(number), 6) for number in theirs[name].flatten()]}"
        for name in constants.values()
    )
    raise RunError(
        f"{source}: its network normalises the images ({said}), the one to fill does not; "
        "build it with these numbers as its mean and std"
    )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _some(words: Iterable[str]) -> str:
    listed = [str(word) or "the whole file" for word in words]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return (", ".join(listed[:SHOWN]) + more) or "nothing"
