"""Writes a network as ONNX, and compares it with torch on natural and adversarial images."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from allrounder.attacks.base import perturb
from allrounder.data.base import Split
from allrounder.errors import MissingLibraryError, RunError
from allrounder.evaluation.evaluate import default_batch_size, select_rows
from allrounder.evaluation.probes import Probe
from allrounder.experiments.export.check import import_network, random_images
from allrounder.experiments.export.module import MODULE_FILE
from allrounder.experiments.export.onnx_module import write_onnx_module
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.rng import Rng
from allrounder.system.files import write_text
from allrounder.types import Images, Labels

ONNX_FILE = "model.onnx"
TOLERANCE = 1e-4
"""The largest difference between logits of torch and of ONNX Runtime, relative to the largest logit, or 1."""
NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
"""Libraries that log about operators of other packages while they export."""


@final
@dataclass(frozen=True, eq=False)
class ComparedImages:
    """The images that both networks are compared on, and the attacks on them."""

    x: Images
    y: Labels
    probes: tuple[Probe, ...]
    batch_size: int

    @classmethod
    def select(cls, trained: TrainedNetwork, split: Split, n: int, probes: Sequence[Probe]) -> ComparedImages:
        """Select `n` images of a split, balanced over classes."""
        rows = select_rows(split, n, trained.recipe.seed)
        size = default_batch_size(trained.network, split)
        return cls(split.fetch(rows), split.labels[rows], tuple(probes), size)


def write_onnx(trained: TrainedNetwork, folder: Path, images: ComparedImages) -> dict[str, Any]:
    """Write the network and a module that runs it, and return how well both agree.

    Raises RunError if a logit differs by more than TOLERANCE.
    """
    check_libraries()
    file = folder / ONNX_FILE
    _export(trained.network, random_images(trained, 2), file)
    text = write_onnx_module(trained.classes, trained.shape, ONNX_FILE, trained.describe())
    write_text(folder / MODULE_FILE, text)
    runtime = import_network(folder / MODULE_FILE)
    check: dict[str, Any] = {"images": len(images.y), "seed": trained.recipe.seed, "tolerance": TOLERANCE}
    check["natural"] = _compare(trained.network, runtime, images.x, images.y, images.batch_size)
    rng = Rng(trained.recipe.seed).fold_in("export")
    for probe in images.probes:
        batches = zip(_split(images.x, images.batch_size), _split(images.y, images.batch_size), strict=True)
        crafted = [
            perturb(probe.attack, trained.network, x, y, probe.threat, rng.fold_in("batch", number)).x
            for number, (x, y) in enumerate(batches)
        ]
        adversarial = torch.cat(crafted)
        check[str(probe)] = _compare(trained.network, runtime, adversarial, images.y, images.batch_size)
    for name in ("natural", *map(str, images.probes)):
        if check[name]["difference"] > TOLERANCE:
            got = f"got {check[name]['difference']:.2g} of the largest logit, expected at most {TOLERANCE}"
            raise RunError(
                f"{ONNX_FILE}: differs from torch on images of {name}: {got}; nothing was written; "
                "update onnxruntime, or export with --to torch"
            )
    return check


def _compare(network: nn.Module, runtime: nn.Module, x: Images, y: Labels, batch_size: int) -> dict[str, Any]:
    """Compare logits, predictions and accuracies of torch and of ONNX Runtime on the same images."""
    with torch.no_grad():
        a, b = (torch.cat([model(part) for part in _split(x, batch_size)]) for model in (network, runtime))
    return {
        "difference": _relative_difference(a, b),
        "agree": int((a.argmax(1) == b.argmax(1)).sum()),
        "correct_torch": int((a.argmax(1) == y).sum()),
        "correct_onnx": int((b.argmax(1) == y).sum()),
    }


def _split(tensor: Tensor, size: int) -> list[Tensor]:
    return [tensor[start : start + size] for start in range(0, len(tensor), size)]


def _relative_difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not bool(a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    return float((a - b).abs().max() / a.abs().max().clamp_min(1))


def _export(network: nn.Module, x: Images, file: Path) -> None:
    """Write a network as one file with a free batch dimension."""
    with _silence_exporter():
        program: Any = torch.onnx.export(
            network,
            (x,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )
        program.save(file, external_data=False)


@contextmanager
def _silence_exporter() -> Generator[None]:
    """Within the context, warnings of the exporter about other packages and its own future are not shown."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def check_libraries() -> None:
    """Raise MissingLibraryError unless the libraries of the extra `onnx` are installed."""
    try:
        import onnx as _onnx
        import onnxruntime as _onnxruntime
        import onnxscript as _onnxscript
    except ModuleNotFoundError as error:
        advice = 'install it with: pip install "allrounder[onnx]"'
        raise MissingLibraryError(
            f"onnx: needs the library {error.name}, which is missing; {advice}"
        ) from None
    del _onnx, _onnxruntime, _onnxscript
