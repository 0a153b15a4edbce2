"""Digests that tell whether two evaluations are of the same network and the same images."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from allrounder.data.base import Split
from allrounder.nn.digest import add_module_, to_bytes
from allrounder.nn.modes import eval_mode
from allrounder.rng import Rng
from allrounder.system.processes import use_threads
from allrounder.types import Classifier, Images, Labels, device_and_dtype

MODEL_SAMPLE, DATA_SAMPLE = 8, 512
"""About how many images are classified to fingerprint a network, and read to fingerprint a dataset."""


def fingerprint_model_and_data(model: Classifier, split: Split) -> dict[str, Any]:
    """Digests of a network (weights, buffers, logits) and of a dataset (labels, images).

    A network may depend on more than its tensors, so its logits for a few images are included. They are
    computed with one thread, because another number of threads may round differently.
    """
    images = _sample_images(split)
    network = hashlib.sha256()
    if isinstance(model, nn.Module):
        add_module_(network, model)
    x = images[:: -(-len(images) // MODEL_SAMPLE)].to(*device_and_dtype(model))
    seeded = Rng(0).fold_in("identity").seed_global()
    with use_threads(1), eval_mode(model), torch.no_grad(), seeded:
        network.update(to_bytes(model(x)))
    digests = {"network": network.hexdigest()[:16], "data": _digest_images(split, images)}
    return {**digests, "images of data": len(split)}


def digest_data(split: Split) -> str:
    """A digest of a dataset: of its labels, and of some of its images."""
    return _digest_images(split, _sample_images(split))


def _sample_images(split: Split) -> Images:
    return split.fetch(torch.arange(0, len(split), -(-len(split) // DATA_SAMPLE)))


def _digest_images(split: Split, images: Images) -> str:
    return hashlib.sha256(to_bytes(split.labels) + to_bytes(images)).hexdigest()[:16]


def digest_rows(rows: Labels) -> str:
    """A digest of a choice of images."""
    return hashlib.sha256(to_bytes(rows)).hexdigest()[:16]
