"""Networks and weights that did not come from a run, as a command line names them."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import nn

from allrounder.config.fields import nearest
from allrounder.errors import RunError
from allrounder.models import MODELS
from allrounder.models.base import Architecture, Shape
from allrounder.models.state_dict_match import constants_of, load_, tensors_of
from allrounder.models.wide_resnet import WideResNet
from allrounder.nn.state import Weights

SIZED = r"(?:wrn|wide[-_]?resnet)[-_]?(\d+)(?:[-_x](\d+))?"
"""A wide residual network with its depth and, if it is not 10, how many times it is wider."""
SAFE_TORCH = (2, 10)
"""From this version on, torch mends what let a crafted file run code even where tensors alone were asked for
(CVE-2025-32434, CVE-2026-24747)."""
MISTAKEN = (
    (rb"\s*<(?:!doctype|html|\?xml)", "a web page", "the download failed; get the file itself"),
    (rb"version https://git-lfs", "a pointer of Git LFS", "get the file itself with: git lfs pull"),
)
"""What is often saved in place of a file of weights."""


def network_of(
    spec: str, weights: Path | None = None, *, classes: int, shape: Shape, key: str | None = None
) -> nn.Module:
    """A network in evaluation mode: one of ours by name, or somebody's as "package.module:factory".

    A factory is anything that can be called without arguments and gives a network, or a network itself; the
    current folder is searched too. `weights` may be left out where the factory loads its own; `key` chooses
    between several sets in one file. A normalisation that the file holds is built into a network of ours.
    """
    source = str(weights)
    if ":" in spec:
        network = _made(spec)
        if weights is not None:
            load_(network, read_weights(weights, key), source=source)
        return network.eval()
    architecture = architecture_of(spec)
    if weights is None:
        raise RunError(f"{spec}: names an architecture, which has no weights of its own; give a file of them")
    tensors = read_weights(weights, key)
    # One number stands for all channels.
    constants = {name: n * shape[0] if len(n) == 1 else n for name, n in constants_of(tensors).items()}
    try:
        network = replace(architecture, **constants).build(classes, shape)
    except ValueError as error:
        raise RunError(f"{source}: cannot be a network for images of shape {shape}: {error}") from None
    load_(network, tensors, source=source)
    return network.eval()


def architecture_of(name: str) -> Architecture:
    """One of our architectures by its name in any spelling: resnet18, ResNet-18, wrn-28-10, WideResNet-34-10.

    A depth that only the Generalist papers count, as in WRN-32-10, is counted as they do.
    """
    known = {_plain(kind): cls for kind, cls in MODELS.items() if issubclass(cls, Architecture)}
    if _plain(name) in known:
        return known[_plain(name)]()
    sized = re.fullmatch(SIZED, name.lower())
    if sized is None:
        names = [kind for kind, cls in MODELS.items() if issubclass(cls, Architecture)]
        hint = nearest(name.lower(), names)
        raise RunError(
            f"{name}: no such network (known: {', '.join(names)}, wrn-DEPTH-WIDEN){hint}; or name one of "
            'your own as "package.module:factory"'
        )
    depth = int(sized[1])
    try:
        return WideResNet(
            depth=depth, widen=int(sized[2] or 10), counting="papers" if depth % 6 == 2 else "usual"
        )
    except ValidationError as error:
        said = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise RunError(f"{name}: no such network: {said}") from None


def read_weights(path: Path, key: str | None = None) -> Weights:
    """The named tensors of a file, on the CPU: safetensors, or what torch.save made of tensors alone."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else f"no such file (looked from {Path.cwd()})"
        raise RunError(f"{path}: {what}; give a file of weights, such as .safetensors or .pt")
    with path.open("rb") as file:
        head = file.read(64)
    for pattern, what, remedy in MISTAKEN:
        if re.match(pattern, head.lower()):
            raise RunError(f"{path}: is {what}, expected weights; {remedy}")
    raw = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    if not isinstance(raw, Mapping):
        what = type(raw).__name__
        raise RunError(f"{path}: holds a {what}, expected tensors by name; save network.state_dict()")
    return tensors_of(cast(Mapping[str, object], raw), key=key, source=str(path))


def _made(spec: str) -> nn.Module:
    """What a factory makes, imported and called with the current folder among the places to look."""
    module, _, attribute = spec.partition(":")
    with _here():
        found: Any = _imported(spec, module)
        for name in attribute.split("."):
            if not hasattr(found, name):
                hint = nearest(name, [known for known in dir(found) if not known.startswith("_")])
                raise RunError(f'{spec}: {module} has no "{name}"{hint}; name a factory of the module')
            found = getattr(found, name)
        network = found if isinstance(found, nn.Module) else _called(spec, found)
    if not isinstance(network, nn.Module):
        raise RunError(
            f"{spec}: gave a {type(network).__name__}, expected a torch.nn.Module; return the network"
        )
    return network


def _imported(spec: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RunError(
                f"{spec}: {module} needs {error.name}, which is not installed; install it"
            ) from error
        raise RunError(
            f"{spec}: no module {error.name} (looked from {Path.cwd()}), "
            'expected "package.module:factory"; go to its folder or install it'
        ) from error


def _called(spec: str, factory: Any) -> object:
    if not callable(factory):
        what = type(factory).__name__
        raise RunError(f"{spec}: is a {what}, expected a function or a class that gives a network; name one")
    call = cast(Callable[[], object], factory)
    try:
        inspect.signature(call).bind()
    except TypeError as error:
        raise RunError(
            f"{spec}: cannot be called without arguments ({error}); name a function that needs none"
        ) from None
    except ValueError:
        pass  # Some callables do not tell their arguments.
    return call()


@contextmanager
def _here() -> Generator[None]:
    """Look for modules in the current folder too, as python itself does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _read_safetensors(path: Path) -> Weights:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: no safetensors file, or one cut short ({error}); get it again") from None


def _read_torch(path: Path) -> object:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < SAFE_TORCH:
        need = ".".join(map(str, SAFE_TORCH))
        raise RunError(
            f"{path}: files of torch.save are read from torch {need} on, because in this one "
            f"({torch.__version__}) a crafted file can run code; update torch, or convert it to safetensors"
        )
    # Torch, pickle and zipfile have errors of their own for a damaged file.
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        more = re.search(r"Unsupported (?:global: GLOBAL|class) (\S+)|(TorchScript)", str(error))
        if more is not None:
            raise RunError(
                f"{path}: holds more than tensors ({more[1] or more[2]}), and reading that would run code: "
                "refused; ask for the network's state_dict() alone, best as safetensors"
            ) from None
        said = str(error).partition("WeightsUnpickler error:")[2] or str(error)
        first = said.strip().partition("\n")[0][:80]
        what = f"{type(error).__name__}: {first}"
        raise RunError(f"{path}: no file of torch.save, or one cut short ({what}); get it again") from None


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower()).replace("wideresnet", "wrn")
