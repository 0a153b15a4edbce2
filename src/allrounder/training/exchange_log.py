"""What a run logs about an exchange: how far the learners are from each other and from the global weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from allrounder.nn.drift import measure_drift
from allrounder.recipe.exchange import Exchange
from allrounder.training.checkpoint import Checkpointer
from allrounder.types import NamedTensors


def log_exchange(
    log: Checkpointer,
    exchange: Exchange,
    t: int,
    led: Mapping[str, NamedTensors],
    shares: Mapping[str, float],
    theta: NamedTensors,
) -> None:
    """Log the drift of the learners and their distances from the parameters `theta`, before they restart.

    `led` holds the weights of the learners that this rank leads. All ranks call it together. If an epoch
    exchanges after every step, only its first exchange is logged.
    """
    if exchange.when == "every-step" and log.clock.step_in_epoch(t) > 1:
        return
    parameters = {name: {key: weights[key] for key in theta} for name, weights in led.items()}
    found = measure_drift(log.receive_states(parameters, shares), shares, theta)
    if log.world.is_main:
        log.run.log("exchange", t=t, epoch=log.clock.epoch(t), **asdict(found), shares=dict(shares))
