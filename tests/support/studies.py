"""The smallest of studies, and how to run it in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from allrounder.experiments.runner import make_jobs, open_study
from allrounder.experiments.study import Study
from allrounder.system.progress import ProgressEvent

RECIPE = """
epochs = 2
batch_size = 20
checkpoint = 1
data = {{ kind = "npz", path = "{path}" }}
model = {{ kind = "small-cnn", width = 2 }}
probes = ["pgd-2@Linf:0.1", "pgd-2@L2:0.5"]
validation = {{ images = 20, train_images = 0, every = 1, attack = {{ kind = "pgd", steps = 1 }} }}
[[task]]
name = "linf"
objective = {{ kind = "adversarial", threat = "Linf:0.1", attack = {{ kind = "pgd", steps = 1 }} }}
lr = 0.05
augment = {{ kind = "none" }}
"""


def tiny_study(folder: Path) -> Study:
    """Two rates, two seeds: four trainings of six steps, with data and recipe in a folder."""
    draws = np.random.default_rng(0)
    y = (np.arange(120) % 3).astype(np.int64)
    x = np.clip(draws.normal(0.5, 0.1, (120, 1, 12, 12)) + 0.1 * y[:, None, None, None], 0, 1).astype(
        np.float32
    )
    path = folder / "data.npz"
    np.savez(path, x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    (folder / "tiny.toml").write_text(RECIPE.format(path=path), encoding="utf-8")
    base = str(folder / "tiny.toml")
    rows = '[{ label = "slow", sets = ["task.linf.lr=0.01"] }, { label = "fast" }]'
    return Study.loads(f'name = "tiny"\nbase = "{base}"\nseeds = [0, 1]\nrow = {rows}')


def run_here(study: Study, folder: Path) -> list[ProgressEvent]:
    """Run a study in this process; return its events."""
    events: list[ProgressEvent] = []
    open_study(study, folder)
    for name, job in make_jobs(study.trials(), folder, study.images, study.ood, study.held_out).items():
        job(name, events.append)
    return events
