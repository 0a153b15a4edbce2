"""Options of an evaluation that are seldom needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from allrounder.config.fields import did_you_mean
from allrounder.distributed import World
from allrounder.report.outcome import Facts

PreflightMode: TypeAlias = Literal["stop", "note", "skip"]


@final
@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `evaluate` that are seldom needed."""

    batch_size: int | None = None
    """Images per forward pass; None chooses it by the size of the images. It changes the last bits."""
    check: PreflightMode = "stop"
    """What severe findings of the preflight do: stop (raise an error), note (record them), skip (no
    preflight)."""
    keep_examples: bool = False
    """Whether to save the images that fool the network, in the folder `out`."""
    about: Facts = field(default_factory=dict[str, Any])
    """More facts for the outcome, such as the name of the network."""
    ood_data: str | Path | None = None
    """A folder with corrupted images for `ood`; None looks in the cache, or generates them."""
    world: World = field(default_factory=World.single_process)
    """The processes started by torchrun; they share the images, and only rank 0 writes."""

    def __post_init__(self) -> None:
        check_choice("check", self.check, get_args(PreflightMode))
        check_positive("batch_size", self.batch_size)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless an option is one of its choices."""
    if value not in choices:
        expected = f"{', '.join(choices)}{did_you_mean(value, choices)}"
        raise ValueError(f"{name}: got {value!r}, expected one of {expected}")


def check_positive(name: str, value: int | None) -> None:
    """Raise ValueError unless an option is None or at least 1."""
    if value is not None and value < 1:
        raise ValueError(f"{name}: got {value}, expected 1 or more")
