"""The run folder: resolved recipe, provenance, metrics, checkpoints, and the weights that came out.

recipe.toml     everything that decides the result      env.json    versions, device, threads, per session
metrics.jsonl   one object per event                    checkpoints/step-N   everything to resume from
phases/NAME     the trainings of a program, each a run folder like this one
weights/best-N  weights/last-N    global weights and every learner's, each folder with its manifest
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.errors import RunError
from allrounder.nn.state import Weights, copy_, misfit, weights_of
from allrounder.recipe.init import PHASES
from allrounder.recipe.recipe import Recipe
from allrounder.system.files import (
    LOCK,
    aside,
    locked,
    newest,
    prune,
    read_facts,
    read_tensors,
    sync,
    write_folder,
    write_text,
)

FORMAT = 1
RECIPE = "recipe.toml"


@final
class Run:
    """One training's folder."""

    def __init__(self, folder: Path, recipe: Recipe | None = None):
        """An existing run folder; with its recipe, one that may be on another machine."""
        self.folder = folder
        if recipe is not None:
            self.recipe = recipe
            return
        if not (folder / RECIPE).is_file():
            raise RunError(f"{folder}: no run folder, it has no {RECIPE}")
        self.recipe = Recipe.loads((folder / RECIPE).read_text(encoding="utf-8"), str(folder / RECIPE))

    @classmethod
    def begin(cls, folder: Path, recipe: Recipe, *, resume: bool) -> Run:
        """Make the folder, or take up the one that is there if it belongs to the same recipe."""
        if not (folder / RECIPE).is_file():
            _check_free(folder)
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder, "training"):
                if not (folder / RECIPE).is_file():
                    write_text(folder / RECIPE, recipe.dump())
        run = cls(folder)
        if run.recipe.fingerprint() != recipe.fingerprint():
            raise RunError(
                f"{folder}: holds a run of another recipe ({run.recipe.name} {run.recipe.fingerprint()}, "
                f"asked for {recipe.name} {recipe.fingerprint()}); choose another --out, nothing was changed"
            )
        begun = run.latest() is not None or (folder / PHASES).exists()
        if not resume and not run.finished and begun:
            raise RunError(
                f"{folder}: was begun and not finished; continue it with --resume, or choose another --out"
            )
        return run

    @property
    def finished(self) -> bool:
        """Whether training went to its end."""
        return self.last() is not None

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out of the folder while it is written."""
        return locked(self.folder, "training")

    def log(self, event: str, **facts: Any) -> None:
        """Append one object to the metrics."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **facts}) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All events so far; a last line without its end is still being written."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def keep_metrics(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Forget all events but some, and a line without its end."""
        lines = [json.dumps(event) for event in self.metrics() if wanted(event)]
        write_text(self.folder / "metrics.jsonl", "".join(f"{line}\n" for line in lines))

    def record_session(self, device: torch.device, **more: Any) -> list[str]:
        """Add this process to env.json, with more facts; say what differs from earlier ones and may change
        bits."""
        path = self.folder / "env.json"
        sessions: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        now = {**environment(device), "seed": self.recipe.seed, **more}
        differs = [
            f"{key} was {sessions[-1].get(key)}, is {now[key]}: bits may differ from an uninterrupted run"
            for key in ("threads", "torch", "device", "processor")
            if sessions and sessions[-1].get(key) != now[key]
        ]
        write_text(path, json.dumps([*sessions, now], indent=1))
        return differs

    def save_checkpoint(
        self, t: int, learners: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]
    ) -> None:
        """Save everything needed to go on after step t, unless that was done; then forget what is older."""
        path = self.folder / "checkpoints" / f"step-{t:08d}"
        metrics = self.folder / "metrics.jsonl"
        if path == self.latest():
            return
        if metrics.exists():
            sync(metrics)
        length = metrics.stat().st_size if metrics.exists() else 0
        stamp = {"format": FORMAT, "fingerprint": self.recipe.fingerprint(), "t": t, "metrics_bytes": length}
        write_folder(path, learners, {**stamp, **facts})
        prune(path.parent, "step", keep=path)

    def latest(self) -> Path | None:
        """The newest whole checkpoint."""
        return newest(self.folder / "checkpoints", "step")

    def resume_point(self) -> tuple[Path | None, dict[str, Any]]:
        """The checkpoint to go on from and its facts, or the beginning."""
        path = self.latest()
        if path is None:
            return None, {"t": 0, "metrics_bytes": 0}
        facts = read_facts(path)
        if facts.get("fingerprint") != self.recipe.fingerprint():
            raise RunError(f"{path}: belongs to another recipe; it was changed by hand")
        return path, facts

    def rewind(self, point: Path | None, metrics_bytes: int) -> None:
        """Forget what came after a checkpoint and before it, so that nothing appears twice in the metrics."""
        metrics = self.folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if size < metrics_bytes:
            was = f"it had {metrics_bytes} when the checkpoint was made"
            raise RunError(f"{metrics}: has {size} bytes, {was}; put back what is missing")
        if size > metrics_bytes:
            os.truncate(metrics, metrics_bytes)
        prune(self.folder / "checkpoints", "step", keep=point)

    def save_weights(
        self, which: str, t: int, weights: Mapping[str, Weights], facts: Mapping[str, Any]
    ) -> None:
        """Save the global weights and every learner's, as "best" or "last"."""
        stamp = {
            "format": FORMAT,
            "recipe": self.recipe.name,
            "fingerprint": self.recipe.fingerprint(),
            "t": t,
        }
        write_folder(self.folder / "weights" / f"{which}-{t:08d}", weights, {**stamp, **facts})

    def keep_best(self, t: int | None) -> None:
        """Forget best weights other than those of step t."""
        folder = self.folder / "weights"
        prune(folder, "best", keep=None if t is None else folder / f"best-{t:08d}")

    def last(self) -> Path | None:
        """The folder of the final weights."""
        return newest(self.folder / "weights", "last")

    def weights(self, which: str = "global") -> tuple[Weights, dict[str, Any]]:
        """Saved weights and their facts: "global" or "last" (both the final global weights), "best" (the
        selected global weights), a learner's name (its average if it keeps one; "linf.live" without),
        "live" (of the only learner), or any of them at the best point ("linf@best")."""
        name, _, point = {"last": "global", "best": "global@best"}.get(which, which).partition("@")
        name = self._live() if name == "live" else name
        if point not in ("", "best", "last"):
            raise RunError(f"{which}: expected global, best, last, a learner's name, or NAME@best")
        folder = newest(self.folder / "weights", point or "last")
        if folder is None:
            why = (
                "nothing was selected yet"
                if point == "best"
                else "training is not finished; continue with --resume"
            )
            raise RunError(f"{self.folder}: has no {point or 'last'} weights: {why}")
        return read_tensors(folder, name), read_facts(folder)

    def _live(self) -> str:
        """What the live weights of the only learner are called."""
        task, *others = self.recipe.tasks
        if others:
            raise RunError(f"{self.folder}: live: has {1 + len(others)} learners; name one: NAME.live")
        return task.name if task.average is None else f"{task.name}.live"


def load(
    run: str | Path, which: str = "global", *, model: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A trained network in evaluation mode, from its run folder; `which` as for `Run.weights`.

    A network that was given to `train` from Python is asked for again.
    """
    opened = Run(Path(run))
    weights, facts = opened.weights(which)
    shape = cast(tuple[int, int, int], tuple(facts["shape"]))
    network = model() if model is not None else opened.recipe.model.build(len(facts["classes"]), shape)
    check_fits(opened.folder, weights, network)
    copy_(weights_of(network), weights)
    return network.eval()


def check_fits(run: str | Path, weights: Mapping[str, Tensor], network: nn.Module) -> None:
    """Raise if the weights of a run are not those of such a network."""
    odd = misfit(weights, weights_of(network))
    if odd is not None:
        raise RunError(f"{run}: holds another network, {odd} does not fit; use the same model for both")


def _check_free(folder: Path) -> None:
    """Raise unless nothing is there but what an interrupted beginning leaves."""
    ours = (LOCK, aside(folder / RECIPE).name)
    if folder.exists() and (not folder.is_dir() or any(path.name not in ours for path in folder.iterdir())):
        raise RunError(f"{folder}: exists and is no run folder; choose another --out")


def environment(device: torch.device) -> dict[str, Any]:
    """What this process runs on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "allrounder": version("allrounder"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the source tree the package runs from, if it is one."""
    here = Path(__file__).parent
    try:
        asked = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None
