"""Warnings about the exchanges of a recipe that its author may not expect."""

from __future__ import annotations

from allrounder.config.schedules import Schedule
from allrounder.config.time import Clock
from allrounder.recipe.recipe import Recipe

MAX_LISTED = 4
"""The largest number of epochs that a warning lists in full."""


def warnings_for(recipe: Recipe, clock: Clock) -> list[str]:
    """Return warnings about exchanges that never happen, overwrite learners, or come too often."""
    mix = recipe.effective_mix
    exchange, shares = mix.exchange, mix.shares
    if exchange is None:
        return []
    # Looking at the ends of periods or epochs only saves half a minute for ImageNet.
    every_step = exchange.when == "every-step"
    interval = clock.steps_per_epoch if every_step else exchange.period(clock)
    due = [t for t in range(interval, clock.total_steps + 1, interval) if exchange.is_due(t, clock)]
    if every_step:  # all steps of an epoch are due if the last one is
        due = [t for end in due for t in range(end - interval + 1, end + 1)]
    if not due:
        times = f"it starts at {exchange.start}, every {exchange.every}, of {recipe.epochs} epochs"
        return [f"no exchange ever happens: {times}"]
    warnings: list[str] = []
    overwriting = [t for t in due if shares and mix.shares_at(t, clock, recipe.names)[shares.lead] == 1]
    if shares and overwriting:
        times = [clock.epoch(t) if every_step else t / clock.steps_per_epoch for t in overwriting]
        epochs = list(dict.fromkeys(f"{time:g}" for time in times))
        if len(epochs) > MAX_LISTED:
            epochs[3:] = [f"... {epochs[-1]}"]
        others = ", ".join(name for name in recipe.names if name != shares.lead)
        warnings.append(
            f"{len(overwriting)} of {len(due)} exchanges happen while the share of {shares.lead} is 1 "
            f"(at epoch {', '.join(epochs)}): they overwrite {others} with {shares.lead} alone"
        )
    averages = [task.average for task in recipe.tasks if task.average is not None]
    learner_time = max((_time_constant(decay, due[0], clock) for decay in averages), default=0.0)
    total_time = _time_constant(mix.decay, due[0], clock) + learner_time
    period = 1 if every_step else exchange.period(clock)
    if total_time > period:
        warnings.append(
            f"the global average has a time constant of {total_time:.0f} steps, {total_time / period:.1f} "
            f"times the {period} steps between exchanges: each exchange sets the learners back"
        )
    return warnings


def _time_constant(decay: Schedule, t: int, clock: Clock) -> float:
    """Return the time constant of a moving average, in steps."""
    return 1 / (1 - decay(t, clock))
