"""Checks an exported module: it must give the logits of the network that was exported, bit for bit."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from allrounder.errors import RunError
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.rng import Rng
from allrounder.types import Images

NUM_IMAGES = 8
MODULE_NAME = "allrounder_exported_module"
"""The name under which a module is imported for its check."""


def check_module(file: Path, trained: TrainedNetwork) -> dict[str, Any]:
    """Load the network of an exported module, and compare its logits with those of the run on random images.

    Returns what was compared. Raises RunError if a logit differs in any bit.
    """
    x = random_images(trained)
    with torch.no_grad():
        expected, got = trained.network(x), import_network(file)(x)
    if not torch.equal(expected, got):
        difference = float((expected - got).abs().max())
        raise RunError(
            f"{file.name}: its logits differ from those of {trained.run.folder} by up to {difference:.3g}, "
            "expected equal bits; nothing was written; please report this as a bug"
        )
    return {"images": f"{len(x)} random", "logits": "equal bits"}


def random_images(trained: TrainedNetwork, count: int = NUM_IMAGES) -> Images:
    """Return images of uniform noise in the shape of the run's."""
    return Rng(0).fold_in("export").uniform(torch.empty(count, *trained.shape))


def import_network(file: Path) -> nn.Module:
    """Import a module that was written a moment ago, and load its network; the import leaves no trace."""
    spec: Any = importlib.util.spec_from_file_location(MODULE_NAME, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        return cast(nn.Module, module.load())
    finally:
        del sys.modules[MODULE_NAME]
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
