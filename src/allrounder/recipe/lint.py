"""What a recipe does that its author may not expect, with numbers."""

from __future__ import annotations

from allrounder.config.schedules import Schedule
from allrounder.config.time import Clock
from allrounder.recipe.recipe import Recipe


def advice(recipe: Recipe, clock: Clock) -> list[str]:
    """Remarks on the exchanges of a recipe; none where all is well."""
    mix = recipe.mixing
    exchange, shares = mix.exchange, mix.shares
    if exchange is None or shares is None:
        return []
    due = [t for t in range(1, clock.total + 1) if exchange.due(t, clock)]
    if not due:
        times = f"it starts at {exchange.start}, every {exchange.every}, of {recipe.epochs} epochs"
        return [f"no exchange ever happens: {times}"]
    remarks: list[str] = []
    overwriting = [t for t in due if mix.shares_at(t, clock, recipe.names)[shares.lead] == 1]
    if overwriting:
        whole = exchange.when == "every-step"
        epochs = dict.fromkeys(clock.epoch(t) if whole else t / clock.steps for t in overwriting)
        when = _few([f"{epoch:g}" for epoch in epochs])
        others = ", ".join(name for name in recipe.names if name != shares.lead)
        remarks.append(
            f"{len(overwriting)} of {len(due)} exchanges happen while the share of {shares.lead} is 1 "
            f"(at epoch {when}): they overwrite {others} with {shares.lead} alone"
        )
    averages = [task.average for task in recipe.tasks if task.average is not None]
    lag = max((_memory(decay, due[0], clock) for decay in averages), default=0.0)
    horizon = _memory(mix.decay, due[0], clock) + lag
    period = 1 if exchange.when == "every-step" else exchange.period(clock)
    if horizon > period:
        remarks.append(
            f"the global average remembers {horizon:.0f} steps and exchanges are {period} apart, "
            f"{horizon / period:.1f} times less: each takes the learners back behind where they were"
        )
    return remarks


def _memory(decay: Schedule, t: int, clock: Clock) -> float:
    """How many steps an average remembers."""
    return 1 / (1 - decay(t, clock))


def _few(items: list[str]) -> str:
    return ", ".join(items) if len(items) <= 4 else f"{', '.join(items[:3])}, ... {items[-1]}"
