"""Every method: short trainings of shipped recipes, which cover objectives, updates, mixes and programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.golden.cases.training import fine_tune, train_colour, train_grey
from tests.golden.results import Result

EMBEDDED: dict[str, tuple[str, ...]] = {
    "nt": (),
    "at-linf": (),
    "at-l2": (),
    "half-half": (),
    "trades-1": (),
    "trades-6": (),
    "mart": (),
    "fat": (),
    "iat": (),
    "rst-a": (),
    "rst-b": ("epochs=2",),
    "rst-c": ("epochs=2", "batch_size=8"),
    "score": (),
    "agr": (),
    "part": (),
    "awp-at": (),
    "fast-at": (),
    "avg-linf-l2": (),
    "max-linf-l2": (),
    "msd-linf-l2": (),
    "e-at": (),
    "e-at-linf-l2": (),
    "ramp": (),
    "rmc": ("epochs=2", "pipeline.points=3"),
    "soup": ("epochs=2",),
    "generalist-d-nt-linf": (),
    "generalist-d-nt-linf-released": (),
    "generalist-d-linf-l2": (),
    "generalist-t": (),
    "generalist-four": (),
    "generalist-msd-nt": (),
    "generalist-nt-trades": (),
}
"""Shipped recipes of the folder embedded, each with more overrides."""
THIN = ("model.depth=10", "model.widen=1")
FEW = "task.linf.objective.attack.steps=3"
CIFAR: dict[str, tuple[str, ...]] = {
    "awp-at-official": (FEW, "task.linf.update.natural_pass=false"),
    "e-at-official": ("task.eat.objective.attack.steps=3",),
    "fast-at-official": (),
    "fat-official": (FEW, *THIN),
    "iat-official": (FEW,),
    "mart-official": (FEW,),
    "msd-official": ("task.msd.objective.attack.steps=3",),
    "part-official": (FEW,),
    "ramp-official": ("task.ramp.objective.attack.steps=3",),
    "score-official": (FEW,),
    "trades-official": (FEW, *THIN),
    "generalist-d-linf-l2-released": (FEW, "task.l2.objective.attack.steps=3", "epochs=2"),
    "generalist-t-released": (FEW, "task.l2.objective.attack.steps=3", "epochs=2"),
    "generalist-t-raw": (FEW, "task.l2.objective.attack.steps=3", "epochs=2"),
}
"""Shipped recipes of the folder cifar10, with fewer steps of their attacks."""
RENAMED = {"generalist-t-raw": "generalist-t"}
"""The names of recipes that had another one when their case was recorded."""
AVERAGE = "task.linf.average=0.7"
ADAM = "task.natural.optimizer={ kind = 'adam', weight_decay = 1e-4 }"
ADAMW = "task.l2.optimizer={ kind = 'adamw' }"
NESTEROV = "task.linf.optimizer={ kind = 'sgd', nesterov = true, weight_decay = 1e-3, decay_on = 'weights' }"
RESETS = "mix.exchange={ start = 1, every = 1, momentum = 'reset', averages = 'reset' }"
EVERY_STEP = "mix.exchange={ start = 1, every = 1, when = 'every-step' }"
EXTRA = "extra={ data = { kind = 'embedded' }, share = 0.3 }"
OPTIONS: dict[str, tuple[str, ...]] = {
    "optimizers": (ADAM, ADAMW, NESTEROV),
    "recalibrate": ("mix.buffers='recalibrate'", ADAM),
    "resets": (AVERAGE, RESETS, "mix.decay={ kind = 'warmup' }"),
    "every-step": (AVERAGE, EVERY_STEP, "pace='epoch'", "mix.decay=0.9"),
    "streams": ("task.linf.augment_stream='own'", "task.l2.label_smoothing=0.1", "seed=3"),
    "mixup": ("task.linf.augment={ kind = 'mixup' }", "task.l2.augment={ kind = 'cutmix' }"),
    "extra": (EXTRA,),
    "normal-layers": (
        "task.linf.objective.norm_layers='train'",
        "task.l2.objective.norm_layers='train_frozen'",
    ),
    "updates": (
        "task.linf.update={ kind = 'awp', start = 1 }",
        "task.l2.update={ kind = 'agr', start = 1 }",
    ),
    "guard": ("task.linf.update={ kind = 'overfit-guard', fall = 0.01 }", "task.linf.lr=0.5", AVERAGE),
    "network": ("model={ kind = 'wrn', width = 8, depth = 10, widen = 1 }", "epochs=1"),
}
"""Fields that few shipped recipes use, on the triple Generalist."""
PLAIN_MASKS = ("task.linf.objective.mask='plain'", "task.linf.objective.alignment='released'")
VARIANTS: dict[str, tuple[str, ...]] = {
    "half-half/joint": ("task.linf.objective.forward='joint'",),
    "fat/trades": ("task.linf.objective={ kind = 'fat', threat = 'Linf:0.1', variant = 'trades' }",),
    "score/pgd-lse": ("task.linf.objective={ kind = 'score', threat = 'Linf:0.1', variant = 'pgd-lse' }",),
    "score/clips": ("task.linf.objective.clips='robust'", "task.linf.objective.clip=0.3"),
    "part/trades": ("task.linf.objective.outer='trades'", *PLAIN_MASKS),
    "part/mart": ("task.linf.objective.outer='mart'",),
    "ramp/trades": ("task.ramp.objective.variant='trades'",),
    "soup/recalibrate": ("pipeline.buffers='recalibrate'", "pipeline.which='best'", "epochs=1"),
    "rmc/mean": ("pipeline.points=3", "pipeline.choose='mean'", "pipeline.which='best'", "epochs=1"),
}
"""Variants of methods, by recipe."""
GUARDS = ("task.linf.update.fall=0.01", "task.linf.objective.attack.step=2", "task.linf.lr=1.0")

CASES: dict[str, Callable[[], Result]] = {
    **{f"methods/{name}": partial(train_grey, f"embedded/{name}", *sets) for name, sets in EMBEDDED.items()},
    **{
        f"methods/cifar10/{name}": partial(train_colour, f"cifar10/{RENAMED.get(name, name)}", *sets)
        for name, sets in CIFAR.items()
    },
    **{
        f"methods/options/{name}": partial(train_grey, "embedded/generalist-t", *sets)
        for name, sets in OPTIONS.items()
    },
    **{
        f"methods/variants/{name}": partial(
            train_grey, f"embedded/{name.partition('/')[0]}", "epochs=2", *sets
        )
        for name, sets in VARIANTS.items()
    },
    "methods/options/fine-tune": partial(fine_tune, "embedded/nt", "embedded/at-linf", "epochs=2"),
    "methods/options/guard-stops": partial(train_grey, "embedded/fast-at", *GUARDS),
}
