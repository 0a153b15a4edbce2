"""Data: augmentations, corruptions, the order of training, random numbers, norms and schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from allrounder.config.fields import OneOf
from allrounder.config.schedules import (
    Constant,
    Cosine,
    Cyclic,
    EmaWarmup,
    Linear,
    Schedule,
    Step,
    TimeConstant,
)
from allrounder.config.time import Clock, Time
from allrounder.data import Embedded
from allrounder.data.augment import AUGMENTS, Augment
from allrounder.data.base import TensorSplit
from allrounder.data.batches import Batches, ExtraBatches
from allrounder.data.corruptions import corrupt
from allrounder.data.corruptions.perturbations import perturb_sequence
from allrounder.data.splits import hold_out, stratified_indices
from allrounder.rng import Rng
from allrounder.threats.norms import parse_norm
from allrounder.types import Batch
from tests.golden.results import Result, make_result
from tests.golden.subjects import CLASSES, make_bytes, make_images

AUGMENTATIONS: dict[str, dict[str, object]] = {
    "crop-flip": {"kind": "crop-flip", "pad": 3},
    "crop-flip-reflect": {"kind": "crop-flip", "pad": 3, "padding": "reflect"},
    "crop": {"kind": "crop-flip", "pad": 2, "flip": False},
    "resized-crop": {"kind": "resized-crop"},
    "cutout": {"kind": "cutout", "size": 5},
    "colour-jitter": {"kind": "color-jitter", "hue": 0.1},
    "mixup": {"kind": "mixup", "alpha": 0.7, "chance": 0.8},
    "cutmix": {"kind": "cutmix", "chance": 0.8},
    "chain": {
        "kind": "chain",
        "steps": [{"kind": "crop-flip"}, {"kind": "cutout", "size": 3}, {"kind": "mixup"}],
    },
    "none": {"kind": "none"},
}
CORRUPTIONS = (
    *(
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
    ),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)
PERTURBATIONS = (
    *(
        "gaussian_noise",
        "shot_noise",
        "motion_blur",
        "zoom_blur",
        "snow",
        "brightness",
        "translate",
        "rotate",
    ),
    *("tilt", "scale"),
)
SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(value=0.3),
    "linear": Linear(at=(Time.parse(0), Time.parse("30%"), Time.parse("100/3%")), to=(0.1, 0.3, 0.01)),
    "step": Step(at=(Time.parse(0), Time.parse(2), Time.parse("62.5%")), to=(1.0, 0.1, 0.01)),
    "cyclic": Cyclic(peak=0.2, top=Time.parse("40%")),
    "cosine": Cosine(start=0.1, end=0.001, warmup=Time.parse("20%")),
    "ramp": EmaWarmup(limit=0.99),
    "horizon": TimeConstant(over=Time.parse("7%")),
}


def augment(name: str) -> Result:
    """Augment a batch of colour images at two addresses."""
    x, y = make_images(12, 3, 16)
    reader = OneOf(lambda: AUGMENTS)
    value = reader.decode(AUGMENTATIONS[name])
    assert isinstance(value, Augment)
    arrays: dict[str, Tensor] = {}
    for t in (1, 2):
        found = value.apply(Batch(x, y, torch.arange(12)), Rng(4).fold_in("augment", "shared", t))
        arrays[f"x {t}"] = found.x
        arrays |= {} if found.partner is None else {f"partner {t}": found.partner}
        arrays |= {} if found.weight is None else {f"weight {t}": found.weight}
    return make_result(arrays, [float(array.double().mean()) for array in arrays.values()])


def corrupt_images(name: str) -> Result:
    """Corrupt colour and grey images at two severities, with numbers of their own."""
    colour, grey = make_bytes(3, (32, 32, 3)), make_bytes(2, (28, 28, 1))
    arrays = {f"colour {k}": corrupt(colour, name, k, seed=1, rows=[5, 0, 9]) for k in (1, 4)}
    arrays |= {f"grey {k}": corrupt(grey, name, k) for k in (2, 5)}
    return make_result(arrays, [array.mean() / 255 for array in arrays.values()])


def perturb_images(name: str) -> Result:
    """Make the frames of two perturbation sequences."""
    frames = perturb_sequence(make_bytes(2, (32, 32, 3)), name, seed=1, rows=[3, 8])
    return make_result({"frames": frames}, [frames.mean() / 255])


def make_split(count: int, seed: int = 0) -> TensorSplit:
    """Make images whose classes differ in size."""
    x, y = make_images(count, seed=seed)
    return TensorSplit(x, torch.where(torch.arange(count) % 7 == 0, 0, y), CLASSES)


def list_batches() -> Result:
    """List the images of all batches of three epochs."""
    batches = Batches(make_split(53), 8, Rng(6))
    found = [batches.at(epoch, step) for epoch in (1, 2, 3) for step in range(1, batches.steps + 1)]
    return make_result({"index": torch.cat([b.index for b in found]), "x": torch.cat([b.x for b in found])})


def list_extra_batches() -> Result:
    """List the images of all batches of three epochs with a second set of images."""
    batches = ExtraBatches(make_split(53), make_split(31, seed=1), 3, 8, Rng(6))
    found = [batches.at(epoch, step) for epoch in (1, 2, 3) for step in range(1, batches.steps + 1)]
    extra = [b.extra for b in found if b.extra is not None]
    parts = {"index": [b.index for b in found], "x": [b.x for b in found], "extra": extra}
    return make_result({name: torch.cat(part) for name, part in parts.items()})


def cut_validation() -> Result:
    """Cut a validation set from a training set."""
    rest, held_out = hold_out(make_split(53), 17, Rng(6).fold_in("validation"))
    every = {"rest": rest, "validation": held_out}
    return make_result({name: part.fetch(torch.arange(len(part))) for name, part in every.items()})


def choose_part() -> Result:
    """Choose balanced parts of a split."""
    return make_result({str(seed): stratified_indices(make_split(53), 20, seed) for seed in (0, 1)})


def draw_numbers() -> Result:
    """Draw random numbers of every kind, at several addresses."""
    draws = Rng(9).fold_in("golden", 3, "address")
    rows = draws.per_example(torch.tensor([4, 0, 11]))
    shard = draws.for_shard(range(1, 4), 6)
    like, wide = torch.empty(3, 5), torch.empty(3, 40)
    arrays = {"uniform": draws.uniform(like), "normal": draws.normal(wide), "order": draws.permutation(20)}
    arrays |= {
        "integers": draws.integers(9, 2, 50),
        "rows": rows.uniform(like),
        "row normal": rows.normal(wide),
    }
    arrays |= {"some": rows.select(torch.tensor([2, 0])).normal(wide[:2]), "shard": shard.normal(wide)}
    arrays |= {"shard integers": shard.integers(3, 0, 99), "double": draws.normal(wide.double())}
    with draws.fold_in("ambient").seed_global():
        arrays["ambient"] = torch.rand(7)
    return make_result(
        arrays, [float(draws.derive_seed() % 2**50), float(draws.fold_in(1).derive_seed() % 2**50)]
    )


def compute_norms(name: str) -> Result:
    """Compute lengths, directions, random perturbations and projections in one norm."""
    norm, eps = parse_norm(name), {"Linf": 0.1, "L2": 0.9, "L1": 6.0, "L1(0.2)": 6.0}[name]
    x, _ = make_images(6)
    draws = Rng(1).fold_in("start")
    d = draws.fold_in("far").normal(x)
    arrays = {"length": norm.length(d), "ascend": norm.ascend(d), "sample": norm.sample(x, eps, draws)}
    arrays |= {"boundary": norm.sample_boundary(x, eps, draws), "project": norm.project(x, x + d, eps)}
    arrays |= {"around": norm.projector(x, eps)(x + 0.1 * d)}
    arrays |= {"alone": norm.sample(x, eps, draws.per_example(torch.arange(6)))}
    return make_result(arrays, [float(array.double().abs().mean()) for array in arrays.values()])


def compute_schedule(name: str) -> Result:
    """Compute the values of a schedule at all steps of a run, at both paces."""
    clocks = Clock(7, 5), Clock(7, 5, "step")
    return make_result(
        {}, [SCHEDULES[name](c.schedule_step(t), c) for c in clocks for t in range(1, c.total_steps + 1)]
    )


def load_embedded() -> Result:
    """Load the embedded dataset."""
    data = Embedded().load()
    every = {"train": data.train, "test": data.test}
    arrays = {name: part.fetch(torch.arange(len(part))) for name, part in every.items()}
    labels = {f"{name} labels": part.labels for name, part in every.items()}
    return make_result(arrays | labels, [float(np.mean(array.numpy())) for array in arrays.values()])


CASES: dict[str, Callable[[], Result]] = {
    **{f"data/augment/{name}": partial(augment, name) for name in AUGMENTATIONS},
    **{f"data/corruption/{name}": partial(corrupt_images, name) for name in CORRUPTIONS},
    **{f"data/perturbation/{name}": partial(perturb_images, name) for name in PERTURBATIONS},
    "data/batches": list_batches,
    "data/batches/extra": list_extra_batches,
    "data/hold-out": cut_validation,
    "data/part": choose_part,
    "data/embedded": load_embedded,
    "data/random": draw_numbers,
    **{f"data/norm/{name}": partial(compute_norms, name) for name in ("Linf", "L2", "L1", "L1(0.2)")},
    **{f"data/schedule/{name}": partial(compute_schedule, name) for name in SCHEDULES},
}
