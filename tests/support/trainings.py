"""Recipes that train in a quarter of a second, and what their runs leave behind.

Three steps an epoch, nine in all; checkpoints come every two steps, so some of them lie inside an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from allrounder.data.base import Data
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.support.networks import Tiny, blobs, tiny

Model = Callable[[], nn.Module]

HEAD = """
epochs = 3
batch_size = 16
seed = 5
checkpoint = 0.7
data = { kind = "python", name = "blobs" }
model = { kind = "python", name = "tiny" }
[validation]
images = 12
train_images = 6
every = 1
threats = ["Linf:0.1"]
attack = { kind = "pgd", steps = 2 }
"""
NATURAL = """
[[task]]
name = "natural"
objective = { kind = "natural" }
lr = { kind = "linear", at = [0, "100%"], to = [0.1, 0.02] }
augment = { kind = "crop-flip", pad = 1 }
"""
LINF = """
[[task]]
name = "linf"
objective = { kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 2 } }
lr = 0.05
augment = { kind = "crop-flip", pad = 1 }
"""
MIX = """
[mix]
decay = 0.8
shares = { lead = "linf", curve = 0.6 }
exchange = { start = 1, every = 1 }
"""
SOLO = HEAD + NATURAL
PAIR = HEAD + LINF + NATURAL + MIX


class Forgetful(Tiny):
    """With dropout, whose noise must come back after an interruption."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.dropout(self.bn(self.conv(x)).tanh().flatten(1)))


class EndsAfter:
    """A listener that ends a training by an error after a step."""

    def __init__(self, last: int) -> None:
        self.last = last

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None:
        if t == self.last:
            raise KeyError(t)

    def log(self, text: str) -> None: ...


def forgetful() -> nn.Module:
    return Forgetful()


def recipe(text: str = PAIR, *sets: tuple[str, str]) -> Recipe:
    """A recipe with some of its text replaced; every replacement must find its place."""
    for old, new in sets:
        assert old in text, old
        text = text.replace(old, new)
    return Recipe.loads(text)


def go(value: Recipe, out: Path, *, model: Model = tiny, data: Data | None = None, **more: Any) -> Run:
    """Train on 48 blobs, 36 of which are left after validation."""
    return train(value, out, model=model, data=data or blobs(48), **more)


def remains(folder: Path) -> dict[str, object]:
    """All that a run left and that an interruption may not change, to the bit.

    Left out are the sessions, and what depends on the seconds that steps took.
    """
    left: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name in (".lock", "env.json"):
            continue
        if path.name == "metrics.jsonl":
            left[name] = [without(event, "seconds") for event in Run(path.parent).metrics()]
        elif path.name == "manifest.json":
            left[name] = without(json.loads(path.read_text()), "metrics_bytes", "digest")
        else:
            left[name] = path.read_bytes()
    return left


def contents(folder: Path) -> dict[str, bytes]:
    """Every byte of every file."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def without(facts: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name not in keys}
