"""Networks and weights from outside: architectures by name, Python factories, files of weights."""

from __future__ import annotations

import importlib
import io
import re
import sys
import warnings
import zipfile
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

from allrounder.config.fields import did_you_mean
from allrounder.errors import RunError
from allrounder.models import MODELS
from allrounder.models.base import Architecture, Shape
from allrounder.models.factory import missing_arguments
from allrounder.models.file_modules import import_file
from allrounder.models.layers import build_normalise
from allrounder.models.normalisation import MeanStd
from allrounder.models.state_dict_match import find_state_dict, load_matched_, read_normalisation
from allrounder.models.wide_resnet import WideResNet
from allrounder.system.memory import total_memory
from allrounder.types import Weights

WIDE_RESNET_NAME = r"(?:wrn|wide[-_]?resnet)[-_]?(\d+)(?:[-_x](\d+))?"
"""Name of a wide residual network with its depth and, unless it is 10, its widening factor."""
MIN_SAFE_TORCH = (2, 10)
"""First torch version in which a crafted file cannot run code despite weights_only (CVE-2025-32434,
CVE-2026-24747)."""
CODE_MESSAGES = r"unsupported (?:global:? (?:GLOBAL )?|class )(\S+)|(TorchScript)"
"""Torch's messages for a file that names functions or classes: the name, or TorchScript."""
MISTAKEN_FILES = (
    (rb"\s*<(?:!doctype|html|\?xml)", "a web page", "the download failed; download the file itself"),
    (rb"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with: git lfs pull"),
)
"""Files that are often saved by mistake instead of weights: pattern, description, what to do."""


def load_network(
    spec: str,
    weights: Path | None = None,
    *,
    classes: int,
    shape: Shape,
    key: str | None = None,
    normalise: MeanStd | None = None,
) -> nn.Module:
    """Load a network in evaluation mode: an architecture of this package, or "package.module:factory".

    A factory is a callable without arguments that returns a network, or a network itself; modules are also
    searched in the current folder, and "folder/file.py:factory" names a file. `weights` is optional for a
    factory; `key` selects one of several state dicts in a file. Normalisation constants in the file are built
    into an architecture of this package; files of torchvision and timm have none, and need `normalise`.
    """
    source = str(weights)
    mean, std = normalise or ((), ())
    constants = _repeat({"mean": mean, "std": std}, shape) if normalise is not None else {}
    if ":" in spec:
        network = _import_network(spec)
        if weights is not None:
            load_matched_(network, read_weights(weights, key), source=source)
        if constants:
            _refuse_second_normalisation(spec, _normalisation_of(network, shape))
        return _put_before(constants, network, shape).eval()
    architecture = parse_architecture(spec)
    if weights is None:
        raise RunError(f"{spec}: names an architecture, which has no weights; give a file of weights")
    tensors = read_weights(weights, key)
    in_file = _repeat(read_normalisation(tensors), shape)
    if constants:
        _refuse_second_normalisation(source, in_file)
    try:
        network = replace(architecture, **(in_file or constants)).build(classes, shape)
    except ValueError as error:
        raise RunError(f"{source}: does not fit images of shape {shape}: {error}") from None
    load_matched_(network, tensors, source=source)
    return network.eval()


def _put_before(constants: Mapping[str, tuple[float, ...]], network: nn.Module, shape: Shape) -> nn.Module:
    """The network with a normalisation layer before it, if there are constants."""
    try:
        return (
            nn.Sequential(build_normalise(**constants, channels=shape[0]), network) if constants else network
        )
    except ValueError as error:
        raise RunError(f"--normalise: {error}") from None


def _normalisation_of(network: nn.Module, shape: Shape) -> dict[str, tuple[float, ...]]:
    """The normalisation constants of a network, found by the names and sizes of its tensors."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    sizes = (1, shape[0])
    return read_normalisation({name: tensor for name, tensor in tensors.items() if tensor.numel() in sizes})


def _refuse_second_normalisation(source: str, present: Mapping[str, tuple[float, ...]]) -> None:
    if present:
        got = ", ".join(f"{name} {numbers}" for name, numbers in present.items())
        raise RunError(
            f"{source}: its network normalises the images already ({got}); give no other constants"
        )


def _repeat(constants: Mapping[str, tuple[float, ...]], shape: Shape) -> dict[str, tuple[float, ...]]:
    """Constants for every channel; a single number applies to all of them."""
    return {name: n * shape[0] if len(n) == 1 else n for name, n in constants.items()}


def parse_architecture(name: str) -> Architecture:
    """Parse the name of an architecture in any spelling: resnet18, ResNet-18, wrn-28-10, WideResNet-34-10. A
    depth that is valid only as the Generalist papers count it, as in WRN-32-10, is counted their way."""
    architectures = {kind: cls for kind, cls in MODELS.items() if issubclass(cls, Architecture)}
    for kind, cls in architectures.items():
        if _normalise_name(name) == _normalise_name(kind):
            return cls()
    match = re.fullmatch(WIDE_RESNET_NAME, name.lower())
    if match is None:
        hint = did_you_mean(name.lower(), architectures)
        raise RunError(
            f"{name}: no such network (known: {', '.join(architectures)}, wrn-DEPTH-WIDEN){hint}; or name a "
            'custom one as "package.module:factory"'
        )
    depth, widen = int(match[1]), int(match[2] or 10)
    try:
        return WideResNet(depth=depth, widen=widen, counting="papers" if depth % 6 == 2 else "usual")
    except ValidationError as error:
        reasons = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise RunError(f"{name}: no such network: {reasons}") from None


def read_weights(path: Path, key: str | None = None) -> Weights:
    """Read a state dict to the CPU: from safetensors, or from a torch.save file that holds only tensors."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else f"no such file (looked from {Path.cwd()})"
        raise RunError(f"{path}: {problem}; give a file of weights, such as .safetensors or .pt")
    with path.open("rb") as file:
        head = file.read(64)
    for pattern, description, fix in MISTAKEN_FILES:
        if re.match(pattern, head.lower()):
            raise RunError(f"{path}: is {description}, expected weights; {fix}")
    raw = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    if not isinstance(raw, Mapping):
        got = type(raw).__name__
        raise RunError(f"{path}: holds a {got}, expected tensors by name; save network.state_dict()")
    return find_state_dict(cast(Mapping[str, object], raw), key=key, source=str(path))


def _import_network(spec: str) -> nn.Module:
    """Import "package.module:factory" and call it, unless it is a network itself."""
    module, _, path = spec.rpartition(":")
    with _search_folder(module_folder(spec)):
        target: Any = _import_file(spec, Path(module)) if _is_file(module) else _import_module(spec, module)
        for name in path.split("."):
            if not hasattr(target, name):
                hint = did_you_mean(name, [public for public in dir(target) if not public.startswith("_")])
                raise RunError(f'{spec}: {module} has no "{name}"{hint}; name a factory of the module')
            target = getattr(target, name)
        network = target if isinstance(target, nn.Module) else _call_factory(spec, target)
    if not isinstance(network, nn.Module):
        got = type(network).__name__
        raise RunError(f"{spec}: returned a {got}, expected a torch.nn.Module; return the network")
    return network


def module_folder(spec: str) -> Path:
    """Return the folder in which the module of "module:factory" is searched first."""
    module = spec.rpartition(":")[0]
    return Path(module).absolute().parent if _is_file(module) else Path.cwd()


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def _import_file(spec: str, file: Path) -> Any:
    if not file.is_file():
        raise RunError(f"{spec}: no such file {file} (looked from {Path.cwd()}); correct the path")
    try:
        return import_file(file)
    except ModuleNotFoundError as error:
        raise RunError(f"{spec}: {file} needs {error.name}, which is not installed; install it") from error


def _import_module(spec: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RunError(
                f"{spec}: {module} needs {error.name}, which is not installed; install it"
            ) from error
        raise RunError(
            f"{spec}: no module {error.name} (looked from {Path.cwd()}), "
            'expected "package.module:factory"; change to its folder or install it'
        ) from error


def _call_factory(spec: str, factory: Any) -> object:
    if not callable(factory):
        got = type(factory).__name__
        raise RunError(f"{spec}: is a {got}, expected a function or class that returns a network; name one")
    call = cast(Callable[[], object], factory)
    if problem := missing_arguments(call):
        message = f"cannot be called without arguments ({problem}); name a function that needs none"
        raise RunError(f"{spec}: {message}")
    return call()


@contextmanager
def _search_folder(folder: Path) -> Generator[None]:
    """Also import modules from a folder, as python itself does with the current one."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _read_safetensors(path: Path) -> Weights:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: not a safetensors file, or truncated ({error}); download it again") from None
    except MemoryError:
        problem = "it does not fit into the memory of this machine"
        raise RunError(f"{path}: {problem}; use a machine with more memory") from None


def _read_torch(path: Path) -> object:
    """Read a torch.save file without running code from it; raises RunError if it holds more than tensors."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < MIN_SAFE_TORCH:
        required = ".".join(map(str, MIN_SAFE_TORCH))
        raise RunError(
            f"{path}: reading torch.save files needs torch {required} or later, because a crafted file can "
            f"run code in {torch.__version__}; update torch, or convert the file to safetensors"
        )
    # Torch, pickle and zipfile raise many types of errors for a damaged file.
    try:
        _check_fits_memory(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that torch.save does not write, refused below
            # Torch allocates a false length in an old file, but not of a file in memory.
            source = path if zipfile.is_zipfile(path) else io.BytesIO(path.read_bytes())
            return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        refused = re.search(CODE_MESSAGES, str(error), re.IGNORECASE)
        if refused is not None or _is_plain_pickle(path):
            content = "a pickle" if refused is None else refused[1] or refused[2]
            raise RunError(
                f"{path}: holds more than tensors ({content}); reading it would run code, so it was refused "
                "and nothing was executed; ask for the network's state_dict() alone, as safetensors"
            ) from None
        message = str(error).partition("WeightsUnpickler error:")[2] or str(error)
        first_line = message.strip().partition("\n")[0][:80]
        reason = f"{type(error).__name__}: {first_line}"
        raise RunError(f"{path}: not a torch.save file, or truncated ({reason}); download it again") from None


def _check_fits_memory(path: Path) -> None:
    """Raise ValueError if a file is larger than the memory, or inflates beyond it; torch.save does not
    compress, but reads it."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            size = sum(member.file_size for member in file.infolist())
    if size > total_memory():
        raise ValueError("it does not fit into the memory of this machine")


def _is_plain_pickle(path: Path) -> bool:
    """Whether a file starts like a pickle of a protocol that torch.save does not use."""
    with path.open("rb") as file:
        return re.match(rb"\x80[\x03-\x05]", file.read(2)) is not None


def _normalise_name(name: str) -> str:
    """A name in lower case, without separators, and with "wrn" for wide residual networks."""
    return re.sub(r"[-_ ]", "", name.lower()).replace("wideresnet", "wrn")
