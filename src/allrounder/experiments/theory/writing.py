"""The file theory.json of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from allrounder.experiments.theory.claims import list_claims
from allrounder.experiments.theory.quantities import Theory
from allrounder.system.checked_files import write_json
from allrounder.system.files import make_folder

FORMAT_VERSION = 1
THEORY_FILE = "theory.json"


def write_theory(theory: Theory, folder: Path) -> Path:
    """Write all numbers and claims with a digest, and return the path of the file. NaN becomes null."""
    derived = {
        "regret_total": theory.regret.total,
        "error_regret_total": theory.error_regret.total,
        "theorem1_bound": theory.theorem1.bound,
        "constants": {
            point: {"C": gap.constant, "C_corrected": gap.corrected_constant, "bound": gap.bound}
            for point, gap in theory.gaps.items()
        },
    }
    claims = [asdict(claim) for claim in list_claims(theory)]
    content = {"format": FORMAT_VERSION, **asdict(theory), "derived": derived, "claims": claims}
    make_folder(folder)
    path = folder / THEORY_FILE
    write_json(path, cast(dict[str, Any], _without_nan(content)))
    return path


def _without_nan(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in cast(Mapping[str, object], value).items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in cast(list[object], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
