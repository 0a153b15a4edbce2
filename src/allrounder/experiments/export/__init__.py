"""Exports the network of a run to formats that work without this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from allrounder.config.fields import did_you_mean
from allrounder.data.base import Data
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.errors import InputError, RunError
from allrounder.evaluation.probes import Probe
from allrounder.experiments.export.check import check_module
from allrounder.experiments.export.folder import (
    RECORD_FILE,
    check_place,
    create_folder,
    write_record,
    write_state_dict,
)
from allrounder.experiments.export.hub import CONFIG_FILE, write_hub
from allrounder.experiments.export.module import MODULE_FILE, write_module
from allrounder.experiments.export.onnx import ComparedImages, check_libraries, write_onnx
from allrounder.experiments.export.robustbench import parse_threat_or_norm, write_robustbench
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.experiments.machine_paths import check_no_machine_paths
from allrounder.models.factory import ModelLike
from allrounder.system.files import write_text
from allrounder.threats.norms import Norm
from allrounder.threats.threat import Threat
from allrounder.training.data import load_data
from allrounder.training.run import Run

Format: TypeAlias = Literal["torch", "onnx", "robustbench", "hub"]
FORMATS: tuple[Format, ...] = get_args(Format)
PUBLISHED: tuple[Format, ...] = ("robustbench", "hub")
"""Formats that are made to be uploaded, so their texts may not hold a path of this machine."""
TEXTS = (".md", ".py", ".json", ".toml")
WEIGHTS_FILE = "weights.pt"


@final
@dataclass(frozen=True)
class Exported:
    """A finished export."""

    folder: Path
    check: Mapping[str, Any]
    """How the export was compared with the network of the run."""
    notes: tuple[str, ...] = ()
    """What a user should know or do next."""


def export(
    run: Run | str | Path,
    to: Format,
    out: str | Path | None = None,
    *,
    which: str = "best",
    about: Mapping[str, Any] | None = None,
    threats: Sequence[Threat | Norm | str] = (),
    attack: str = "pgd-20",
    n: int = 64,
    data: Data | str | None = None,
    model: ModelLike | None = None,
) -> Exported:
    """Export the network of a run to a new folder, by default RUN/export/FORMAT-WHICH.

    "torch" writes a state dict and a Python module that needs only torch, "hub" the same for the Hugging Face
    Hub with a model card, "robustbench" what RobustBench asks for, with the fields in `about`. Their logits
    have the bits of the run's network. "onnx" writes an ONNX file, and compares it with torch on `n` test
    images of the run, or of `data`, and on adversarial versions of them, crafted by `attack` on torch.

    `which` and `model` are those of `allrounder.load`. `threats` are those of the attack; for robustbench,
    the one whose numbers are written, or its norm. By default, they are those of the run.
    """
    if to not in FORMATS:
        raise InputError(f"to: got {to!r}, expected one of {', '.join(FORMATS)}{did_you_mean(to, FORMATS)}")
    if n < 1:
        raise InputError(f"n: got {n}, expected a number of images, 1 or more")
    trained = TrainedNetwork.load(run, which, model)
    place = Path(out) if out is not None else default_folder(trained.run.folder, to, which)
    check_place(place)
    notes: list[str] = []
    images = _load_images(trained, threats, attack, n, data) if to == "onnx" else None
    with create_folder(place) as folder:
        if images is not None:
            check = write_onnx(trained, folder, images)
        elif to == "robustbench":
            check, notes = write_robustbench(trained, folder, about or {}, _choose_threat(threats))
        elif to == "hub":
            check, notes = write_hub(trained, folder)
        else:
            check = _write_torch(trained, folder)
        record = {
            "to": to,
            **trained.describe(),
            "model": trained.describe_model(),
            "shape": list(trained.shape),
            "classes": list(trained.classes),
            "check": check,
        }
        write_record(folder / (CONFIG_FILE if to == "hub" else RECORD_FILE), record)
        if to in PUBLISHED:
            for file in sorted(path for path in folder.rglob("*") if path.suffix in TEXTS):
                check_no_machine_paths(file)
    return Exported(place, check, tuple(notes))


def default_folder(run: Path, to: str, which: str) -> Path:
    """Return the folder of an export inside of the run's."""
    return run / "export" / f"{to}-{which.replace('@', '-')}"


def _write_torch(trained: TrainedNetwork, folder: Path) -> dict[str, Any]:
    module = write_module(trained.spec, trained.classes, trained.shape, WEIGHTS_FILE, trained.describe())
    write_text(folder / MODULE_FILE, module)
    write_state_dict(folder / WEIGHTS_FILE, trained.state_dict())
    return check_module(folder / MODULE_FILE, trained)


def _choose_threat(threats: Sequence[Threat | Norm | str]) -> Threat | Norm | None:
    if len(threats) > 1:
        raise InputError(f"threats: got {', '.join(map(str, threats))}, expected one for robustbench")
    return parse_threat_or_norm(threats[0]) if threats else None


def _load_images(
    trained: TrainedNetwork,
    threats: Sequence[Threat | Norm | str],
    attack: str,
    n: int,
    data: Data | str | None,
) -> ComparedImages:
    """Load the test images that an ONNX file is compared on."""
    check_libraries()
    recipe = trained.recipe
    against = [Threat.parse(threat) for threat in threats] or [probe.threat for probe in recipe.probes]
    if not against:
        raise RunError(f"{trained.run.folder}: no threat is known; name one, such as --threat Linf:8/255")
    probes = [Probe.of(attack, threat) for threat in dict.fromkeys(against)]
    loaded = load_data(recipe) if data is None else load_eval_data(data) if isinstance(data, str) else data
    if loaded.shape != trained.shape or len(loaded.classes) != len(trained.classes):
        got = f"images of shape {loaded.shape} in {len(loaded.classes)} classes"
        raise RunError(
            f"data: got {got}, expected {trained.shape} in {len(trained.classes)}; choose other data"
        )
    return ComparedImages.select(trained, loaded.test, n, probes)
