"""The run folder: resolved recipe, provenance, metrics, checkpoints and trained weights.

format.json      version of this layout                     recipe.toml  everything that decides the result
metrics.jsonl    one JSON object per event                  env.json     versions, device, threads per session
checkpoints/step-N                everything that is needed to resume
tensorboard/     the same events for TensorBoard, if the recipe asks for them
weights/best-N   weights/last-N   global weights and every learner's, each folder with its manifest
stages/NAME      the stages of a pipeline, each a run folder like this one

Every file has a digest, in itself or in its manifest, which is checked whenever it is read.
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
from typing_extensions import override

from allrounder.config.fields import did_you_mean
from allrounder.errors import RESUME_HINT, InputError, RunError
from allrounder.models.factory import ModelLike, as_factory
from allrounder.nn.state import copy_, first_mismatch, weights_of
from allrounder.recipe.init import STAGES_DIR
from allrounder.recipe.recipe import Recipe
from allrounder.report.statistics import format_percent
from allrounder.system.checked_files import (
    ADVICE,
    add_digest,
    damage_error,
    parse_json_lines,
    read_json,
    read_manifest,
    write_json,
    write_toml_text,
)
from allrounder.system.files import (
    LOCK_FILE,
    MANIFEST,
    append_line,
    check_location,
    explain_write_errors,
    fsync,
    is_locked,
    lock_folder,
    make_folder,
    newest_folder,
    temporary_path,
    write_text,
)
from allrounder.system.summary import HasSummary, Summary
from allrounder.system.tensor_folders import check_folder, prune_folders, read_tensors, write_folder
from allrounder.training.record import (
    FORMAT_FILE,
    FORMAT_VERSION,
    METRICS_FILE,
    RECIPE_FILE,
    is_finished,
    read_metrics,
    read_metrics_bytes,
    read_recipe_text,
)
from allrounder.training.record_fields import SESSION_FIELDS
from allrounder.types import Weights

SESSIONS_FILE = "env.json"
MAX_LISTED = 3
"""The largest number of settings that a message lists."""


@final
class Run(HasSummary):
    """The folder of one training."""

    def __init__(self, folder: str | Path, recipe: Recipe | None = None):
        """Open a run folder. With `recipe` nothing is read: the folder may be on another machine."""
        self.folder = folder = Path(folder)
        self.metrics_file = folder / METRICS_FILE
        self.log_listener: Callable[[dict[str, Any]], None] | None = None
        """Receives every event after it is logged."""
        if recipe is None:
            recipe = Recipe.loads(read_recipe_text(folder), str(folder / RECIPE_FILE))
        self.recipe = recipe

    @classmethod
    def open_or_create(cls, folder: Path, recipe: Recipe, *, resume: bool) -> Run:
        """Create the run folder, or open the existing one of the same recipe."""
        check_location(folder)
        if not (folder / RECIPE_FILE).is_file():
            _check_unused(folder)
            make_folder(folder)
            with lock_folder(folder, "training"):
                if not (folder / RECIPE_FILE).is_file():
                    write_json(folder / FORMAT_FILE, {"format": FORMAT_VERSION})
                    write_toml_text(folder / RECIPE_FILE, recipe.dumps())
        run = cls(folder)
        if run.recipe.fingerprint() != recipe.fingerprint():
            held, asked = identify_recipe(run.recipe), identify_recipe(recipe)
            changes = ", ".join(run.recipe.differences(recipe)[:MAX_LISTED])
            reason = f"holds a run of another recipe ({held}), asked for {asked}; they differ in {changes}"
            raise RunError(f"{folder}: {reason}; choose another folder, nothing was changed")
        started = run.latest_checkpoint() is not None or (folder / STAGES_DIR).exists()
        if not resume and not run.finished and started:
            if is_locked(folder):  # the advice to resume would only lead to this error
                raise RunError(f"{folder}: another process is training here; wait for it or stop it")
            raise RunError(f"{folder}: holds an unfinished run; {RESUME_HINT}, or choose another folder")
        return run

    @property
    def finished(self) -> bool:
        """Whether the training is finished."""
        return is_finished(self.folder)

    @override
    def summary(self) -> Summary:
        """Describe the state, the recipe and the best validation."""
        checkpoint = self.latest_checkpoint()
        state = "no checkpoint" if checkpoint is None else f"stopped after step {int(checkpoint.name[5:])}"
        rows = [("state", "finished" if self.finished else state), ("recipe", identify_recipe(self.recipe))]
        validations = [event for event in self.metrics() if event["event"] == "validation"]
        if validations:
            best = max(validations, key=lambda event: event["score"])
            accuracies = {"natural": best["natural"], **best["robust"]}
            text = ", ".join(f"{name} {format_percent(number)}%" for name, number in accuracies.items())
            rows.append(("best", f"epoch {best['epoch']}: {text}"))
        return Summary(f"Run {self.folder}", rows)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes within the context."""
        return lock_folder(self.folder, "training")

    def log(self, event: str, **facts: Any) -> None:
        """Append one event to the metrics."""
        fields = {"event": event, **facts}
        append_line(self.metrics_file, json.dumps(add_digest(fields)))
        if self.log_listener is not None:
            self.log_listener(fields)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all events; a last line without its end is still being written and is left out."""
        return read_metrics(self.folder)

    def filter_metrics(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Delete the events for which `keep` is false, and an incomplete last line."""
        lines = [json.dumps(add_digest(event)) for event in self.metrics() if keep(event)]
        write_text(self.metrics_file, "".join(f"{line}\n" for line in lines))

    def record_session(self, device: torch.device, **facts: Any) -> list[str]:
        """Add this process to env.json; return warnings about changes that may change the last bits."""
        sessions = self.read_sessions()
        now = {**describe_environment(device), "seed": self.recipe.seed, **facts}
        warnings = [
            f"{key} was {sessions[-1].get(key)}, is {now[key]}: bits may differ from an uninterrupted run"
            for key in ("threads", "torch", "device", "processor")
            if sessions and sessions[-1].get(key) != now[key]
        ]
        write_json(self.folder / SESSIONS_FILE, {"format": FORMAT_VERSION, "sessions": [*sessions, now]})
        return warnings

    def read_sessions(self) -> list[dict[str, Any]]:
        """Return what env.json says about earlier processes."""
        path = self.folder / SESSIONS_FILE
        advice = "remove it, which only loses the record of earlier sessions"
        return read_json(path, advice, FORMAT_VERSION, SESSION_FIELDS)["sessions"] if path.exists() else []

    def save_checkpoint(
        self, t: int, learners: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]
    ) -> None:
        """Save everything that is needed to resume after step t, unless it is saved; delete older ones."""
        path = self.folder / "checkpoints" / f"step-{t:08d}"
        if path == self.latest_checkpoint():
            return
        write_folder(path, learners, {**self._describe_state(t), **facts})
        prune_folders(path.parent, "step", keep=path)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint."""
        return newest_folder(self.folder / "checkpoints", "step")

    def resume_point(self) -> tuple[Path | None, dict[str, Any]]:
        """Return the checkpoint to resume from and its facts; without one, the facts of step 0."""
        path = self.latest_checkpoint()
        if path is None:
            return None, {"t": 0, "metrics_bytes": 0}
        required = ("t", "metrics_bytes", "sums", "images", "data_digests")
        facts = read_manifest(path, *required, version=FORMAT_VERSION)
        if facts.get("fingerprint") != self.recipe.fingerprint():
            reason = f"got {facts.get('fingerprint')}, expected {self.recipe.fingerprint()}"
            advice = "one of them was changed by hand, restore it"
            raise RunError(f"{path}: belongs to another recipe, {reason}; {advice}")
        if missing := [task.name for task in self.recipe.tasks if task.name not in facts["sums"]]:
            raise damage_error(path / MANIFEST, f"sums: got none of {missing[0]}, expected them", ADVICE)
        return path, facts

    def rewind(self, checkpoint: Path | None, facts: Mapping[str, Any]) -> None:
        """Return to a checkpoint with these facts: delete later metrics, so that no event appears twice, and
        other checkpoints and best weights. First check what is kept, without which the run cannot end."""
        metrics_bytes: int = facts["metrics_bytes"]
        kept = read_metrics_bytes(self.metrics_file, metrics_bytes)[:metrics_bytes]
        parse_json_lines(self.metrics_file, kept, ADVICE)
        self.read_sessions()
        best = self._best_folder(facts.get("best"))
        if best is not None:
            check_folder(best)
        if self._metrics_bytes() > metrics_bytes:
            with explain_write_errors(self.metrics_file):
                os.truncate(self.metrics_file, metrics_bytes)
        prune_folders(self.folder / "checkpoints", "step", keep=checkpoint)
        self.prune_best(facts.get("best"))

    def save_weights(
        self, which: str, t: int, weights: Mapping[str, Weights], facts: Mapping[str, Any]
    ) -> None:
        """Save the global weights and every learner's, as "best" or "last"."""
        path = self.folder / "weights" / f"{which}-{t:08d}"
        write_folder(path, weights, {"recipe": self.recipe.name, **self._describe_state(t), **facts})

    def prune_best(self, best: Mapping[str, Any] | None) -> None:
        """Delete best weights other than those of step `best["t"]`."""
        prune_folders(self.folder / "weights", "best", keep=self._best_folder(best))

    def _best_folder(self, best: Mapping[str, Any] | None) -> Path | None:
        return self.folder / "weights" / f"best-{best['t']:08d}" if best else None

    def weights(self, which: str = "global") -> tuple[Weights, dict[str, Any]]:
        """Return saved weights and their manifest; `which` as for `weights_file`."""
        file = self.weights_file(which)
        required = ("t", "fingerprint", "shape", "classes")
        facts = read_manifest(file.parent, *required, version=FORMAT_VERSION)
        return read_tensors(file.parent, file.name.removesuffix(".safetensors")), facts

    def weights_file(self, which: str = "global") -> Path:
        """Return the file of saved weights.

        `which` is "global" or "last" (both the final global weights), "best" (the selected global weights), a
        learner's name (its average if it keeps one; without averaging "linf.live"), "live" (of the only
        learner), or any of them at the best point ("linf@best").
        """
        name, _, point = {"last": "global", "best": "global@best"}.get(which, which).partition("@")
        if name == "live":
            task, *others = self.recipe.tasks
            if others:
                raise RunError(f"{self.folder}: live: has {1 + len(others)} learners; name one: NAME.live")
            name = task.name if task.average is None else f"{task.name}.live"
        if point not in ("", "best", "last"):
            raise RunError(f"{which}: expected global, best, last, a learner's name, or NAME@best")
        folder = newest_folder(self.folder / "weights", point or "last")
        if folder is None:
            unfinished = f"the training is not finished; {RESUME_HINT}"
            reason = "no weights were selected yet" if point == "best" else unfinished
            raise RunError(f"{self.folder}: has no {point or 'last'} weights: {reason}")
        file = folder / f"{name}.safetensors"
        if not file.is_file():
            files = sorted(folder.glob("*.safetensors"))
            if not files:  # a published study
                reason = "has the digests of its weights, but not the weights"
                raise RunError(
                    f"{self.folder}: {reason}; train {RECIPE_FILE} of this folder in another folder"
                )
            names = [path.stem for path in files if path.stem != "global"]
            known = ["best", "last", *names]
            expected = f"expected {', '.join(known)}, or NAME@best{did_you_mean(which, known)}"
            raise RunError(f'{self.folder}: has no weights "{which}"; {expected}')
        return file

    def _describe_state(self, t: int) -> dict[str, Any]:
        """Return what all manifests hold, after the metrics so far are on disk."""
        if self.metrics_file.exists():
            with explain_write_errors(self.metrics_file):
                fsync(self.metrics_file)
        stamp = {"fingerprint": self.recipe.fingerprint(), "t": t, "metrics_bytes": self._metrics_bytes()}
        return {"format": FORMAT_VERSION, **stamp}

    def _metrics_bytes(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0


def load(run: Run | str | Path, which: str = "global", *, model: ModelLike | None = None) -> nn.Module:
    """Load a trained network in evaluation mode from its run folder; `which` as for `Run.weights_file`.

    A network that was passed to `train` from Python must be passed again as `model`; it is not changed.
    """
    factory = as_factory(model)
    if not isinstance(run, Run | str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(run).__name__
        raise InputError(f"run: got a {got}, expected a Run or the path of its folder; pass one of them")
    source = run if isinstance(run, Run) else Run(run)
    weights, facts = source.weights(which)
    shape = cast(tuple[int, int, int], tuple(facts["shape"]))
    network = factory() if factory is not None else source.recipe.model.build(len(facts["classes"]), shape)
    check_weights_match(source.folder, weights, network)
    copy_(weights_of(network), weights)
    return network.eval()


def check_weights_match(run: str | Path, weights: Mapping[str, Tensor], network: nn.Module) -> None:
    """Raise RunError unless the weights of a run have the names and shapes of a network's."""
    name = first_mismatch(weights, weights_of(network))
    if name is not None:
        raise RunError(f"{run}: holds another network, {name} does not fit; use the same model for both")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the versions, device and threads of this process."""
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
        "commit": _source_commit(),
    }


def identify_recipe(recipe: Recipe) -> str:
    """Return a recipe's name and fingerprint."""
    return f"{recipe.name} {recipe.fingerprint()}".strip()


def _check_unused(folder: Path) -> None:
    """Raise RunError if a folder holds anything but what an interrupted `open_or_create` leaves."""
    if not folder.exists():
        return
    files = (FORMAT_FILE, RECIPE_FILE)
    ours = {LOCK_FILE, FORMAT_FILE, *(temporary_path(folder / file).name for file in files)}
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    # Another process may have made a run of it since we looked; then the lock decides.
    if names is None or (RECIPE_FILE not in names and not names <= ours):
        raise RunError(f"{folder}: exists and is not a run folder; choose another folder")


def _source_commit() -> str | None:
    """Return the commit of the source tree that the package runs from, None if it is not one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
