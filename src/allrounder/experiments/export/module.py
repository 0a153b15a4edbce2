"""Writes model.py: a Python module with one network that needs torch and not this package."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from allrounder.errors import RunError
from allrounder.experiments.export.source import CopiedSource
from allrounder.models.base import Architecture, ModelSpec, Shape
from allrounder.models.ensemble import Ensemble, EnsembleModel, OutputMix
from allrounder.models.layers import Normalise

MODULE_FILE = "model.py"
LINE = 110
LOADERS = {
    ".pt": ('torch.load(weights, map_location="cpu", weights_only=True)', "import torch"),
    ".safetensors": ("load_file(weights)", "from safetensors.torch import load_file"),
}
"""How weights are read, by the ending of their file: an expression, and the import that it needs."""
HEAD = '''"""A network that was trained with Allrounder. This file needs {needs}, and not Allrounder.

import model

network = model.load()  # in evaluation mode, from images (n, {shape}) in [0, 1] to logits (n, {classes})

Normalisation is part of the network: do not normalise the images.
"""

from __future__ import annotations

'''
LOAD = '''
def load(weights: str | Path = WEIGHTS_FILE) -> nn.Module:
    """Load the trained network in evaluation mode, on the CPU."""
    network = build()
    network.load_state_dict({read})
    return network.eval()
'''


def write_module(
    spec: ModelSpec, classes: Sequence[str], shape: Shape, weights: str, about: Mapping[str, Any]
) -> str:
    """Return the source of a module that builds a network and loads `weights`, a path from its own folder."""
    read, needed = LOADERS[weights[weights.rindex(".") :]]
    copied = CopiedSource()
    copied.imports |= {needed, "from pathlib import Path", "from torch import nn"}
    built = _describe_network(spec, len(classes), shape, copied)
    needs = "torch and safetensors" if "safetensors" in needed else "torch only"
    head = HEAD.format(needs=needs, shape=", ".join(map(str, shape)), classes=len(classes))
    lines = textwrap.indent(f'"""Build the network with random weights."""\nreturn {built}', " " * 4)
    build = f"def build() -> nn.Module:\n{lines}"
    parts = [*copied.list_definitions(), build, LOAD.format(read=read).strip()]
    body = "\n\n\n".join([write_constants(weights, classes, about), *_join_constants(parts)])
    return head + "\n".join(copied.list_imports()) + "\n" + body + "\n"


def write_constants(weights: str, classes: Sequence[str], about: Mapping[str, Any]) -> str:
    """Return the constants that every exported module has."""
    constants = [
        f'WEIGHTS_FILE = Path(__file__).parent / {_literal(weights)}\n"""The default of `load`."""',
        f'CLASSES = {_wrap_tuple(classes)}\n"""The names of the classes, in the order of the logits."""',
        f'ABOUT = {_wrap_mapping(about)}\n"""Where the network comes from."""',
    ]
    return "\n".join(constants)


def _describe_network(spec: ModelSpec, classes: int, shape: Shape, copied: CopiedSource) -> str:
    """Return the expression that builds a network, and copy the classes that it uses."""
    if isinstance(spec, Architecture):
        copied.add(spec.network.__module__, spec.network.__name__)
        normalise = _describe_normalise(spec, shape[0], copied)
        arguments = {name: _literal(value) for name, value in spec.arguments(classes, shape).items()}
        return _call(spec.network.__name__, {"normalise": normalise, **arguments})
    if isinstance(spec, EnsembleModel):
        copied.add(Ensemble.__module__, Ensemble.__name__)
        mix = {name: _literal(value) for name, value in asdict(cast(Any, spec.mix)).items()}
        members = {
            name: _describe_network(member, classes, shape, copied)
            for name, member in (("natural", spec.natural), ("robust", spec.robust))
        }
        return _call(Ensemble.__name__, {**members, "mix": _call(OutputMix.__name__, mix)})
    advice = "send its own source file and the weights, or export it with --to onnx from Python (model=...)"
    raise RunError(f"model: the network was given from Python, so its source is not known here; {advice}")


def _describe_normalise(spec: Architecture, channels: int, copied: CopiedSource) -> str:
    if not spec.mean and not spec.std:
        return "nn.Identity()"
    copied.add(Normalise.__module__, Normalise.__name__)
    mean, std = spec.mean or (0.0,) * channels, spec.std or (1.0,) * channels
    return _call(Normalise.__name__, {"mean": _literal(mean), "std": _literal(std)})


def _call(name: str, arguments: Mapping[str, str]) -> str:
    """Return a call on one line if it is short, else with one argument on each line."""
    words = [f"{key}={value}" for key, value in arguments.items()]
    short = f"{name}({', '.join(words)})"
    if len(short) + len("    return ") <= LINE and "\n" not in short:
        return short
    lines = textwrap.indent("".join(f"{word},\n" for word in words), " " * 4)
    return f"{name}(\n{lines})"


def _literal(value: object) -> str:
    """Return a value as ASCII source; texts can hold anything."""
    if isinstance(value, str) and value.isascii():
        return json.dumps(value)
    return ascii(value)


def _wrap_tuple(values: Sequence[str]) -> str:
    """Return a tuple on one line if it is short, else on lines of several texts each."""
    words = [f"{_literal(value)}," for value in values]
    if len(" ".join(words)) <= LINE - len("CLASSES = ()"):
        return f"({words[0]})" if len(words) == 1 else f"({' '.join(words).removesuffix(',')})"
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LINE - 4:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "(\n" + textwrap.indent("\n".join(lines), " " * 4) + "\n)"


def _wrap_mapping(values: Mapping[str, Any]) -> str:
    return (
        "{\n" + "".join(f"    {_literal(key)}: {_literal(value)},\n" for key, value in values.items()) + "}"
    )


def _join_constants(parts: Sequence[str]) -> list[str]:
    """Join definitions of constants and types, which need fewer empty lines."""
    constants = [part for part in parts if not part.startswith(("class ", "def ", "@"))]
    others = [part for part in parts if part.startswith(("class ", "def ", "@"))]
    return ["\n\n".join(constants), *others] if constants else others
