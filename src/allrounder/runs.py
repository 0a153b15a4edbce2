"""The run folder: resolved recipe, provenance, metrics, checkpoints, and the weights that came out.

recipe.toml     everything that decides the result      env.json    versions, device, threads, per session
metrics.jsonl   one object per event                    checkpoints/step-N   everything to resume from
weights/best-N  weights/last-N    global weights and every learner's, each folder with its manifest
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.errors import RunError
from allrounder.recipe import Recipe
from allrounder.storage import newest, prune, read_facts, read_tensors, write_folder, write_text
from allrounder.weights import Weights, copy_, weights_of

FORMAT = 1


@final
class Run:
    """One training's folder."""

    def __init__(self, folder: Path):
        """An existing run folder."""
        self.folder = folder
        if not (folder / "recipe.toml").is_file():
            raise RunError(f"{folder}: no run folder, it has no recipe.toml")
        self.recipe = Recipe.loads(
            (folder / "recipe.toml").read_text(encoding="utf-8"), str(folder / "recipe.toml")
        )

    @classmethod
    def begin(cls, folder: Path, recipe: Recipe, *, resume: bool) -> Run:
        """Make the folder, or take up the one that is there if it belongs to the same recipe."""
        if not (folder / "recipe.toml").is_file():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise RunError(f"{folder}: exists and is no run folder; choose another --out")
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "recipe.toml", recipe.dump())
            return cls(folder)
        run = cls(folder)
        if run.recipe.fingerprint() != recipe.fingerprint():
            raise RunError(
                f"{folder}: holds a run of another recipe ({run.recipe.name} {run.recipe.fingerprint()}, "
                f"asked for {recipe.name} {recipe.fingerprint()}); choose another --out, nothing was changed"
            )
        if not resume and not run.finished and run.latest() is not None:
            raise RunError(
                f"{folder}: was begun and not finished; continue it with --resume, or choose another --out"
            )
        return run

    @property
    def finished(self) -> bool:
        """Whether training went to its end."""
        return self.last() is not None

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes out of the folder while it is written."""
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"{self.folder}: another process is training here; wait for it or stop it"
                ) from None
            yield

    def log(self, event: str, **facts: Any) -> None:
        """Append one object to the metrics."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **facts}) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All events so far."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def record_session(self, device: torch.device) -> list[str]:
        """Add this process to env.json; say what differs from earlier ones and may change bits."""
        path = self.folder / "env.json"
        sessions: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        now = environment(device)
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
        """Save everything needed to go on after step t, then forget the checkpoint before it."""
        path = self.folder / "checkpoints" / f"step-{t:08d}"
        metrics = self.folder / "metrics.jsonl"
        length = metrics.stat().st_size if metrics.exists() else 0
        stamp = {"format": FORMAT, "fingerprint": self.recipe.fingerprint(), "t": t, "metrics_bytes": length}
        write_folder(path, learners, {**stamp, **facts})
        prune(path.parent, "step", keep=path)

    def latest(self) -> Path | None:
        """The newest whole checkpoint."""
        return newest(self.folder / "checkpoints", "step")

    def resume_point(self) -> tuple[Path, dict[str, Any]] | None:
        """The checkpoint to go on from, with the metrics cut back to it so that nothing appears twice."""
        path = self.latest()
        metrics = self.folder / "metrics.jsonl"
        facts = read_facts(path) if path is not None else {"metrics_bytes": 0}
        if path is not None and facts["fingerprint"] != self.recipe.fingerprint():
            raise RunError(f"{path}: belongs to another recipe; it was changed by hand")
        if metrics.exists():
            os.truncate(metrics, min(facts["metrics_bytes"], metrics.stat().st_size))
        return None if path is None else (path, facts)

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
        selected global weights), a learner's name, or a learner's at the best point ("linf@best")."""
        name, _, point = {"last": "global", "best": "global@best"}.get(which, which).partition("@")
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
    copy_(weights_of(network), weights)
    return network.eval()


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
