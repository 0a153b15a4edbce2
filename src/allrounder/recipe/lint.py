"""Warnings about recipes that do what their author may not expect."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from allrounder.attacks.base import Attack
from allrounder.config.schedules import Schedule, TimeConstant
from allrounder.config.time import Clock
from allrounder.nn.mixing import Outer
from allrounder.objectives import HalfHalf
from allrounder.recipe.exchange import Exchange
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat

MAX_LISTED = 4
"""The largest number of epochs that a warning lists in full."""
MAX_EXAMINED = 100_000
"""Exchanges that are examined: the first ones of a run that has more."""


MIN_REACH = 0.5
"""The shortest way that an attack can go in all its steps without a warning, in units of the budget."""

MIN_LARGE_LINF = 0.2
"""The Linf budget from which on a recipe is warned about averaged batch-norm statistics of natural and
adversarial images. Measured: 0.3 on MNIST left 1.3% robust, 0.1 on Fashion-MNIST cost 4 points."""

MIN_GROWTH = 1.1
"""The factor by which an average's share of the run must grow for a warning."""


def warnings_for(recipe: Recipe, clock: Clock) -> list[str]:
    """Return warnings about attacks that hardly move, about batch-norm statistics, and about exchanges."""
    return [*_attack_warnings(recipe), *_statistics_warnings(recipe), *_exchange_warnings(recipe, clock)]


def shortening_warnings(recipe: Recipe, clock: Clock, full_epochs: int) -> list[str]:
    """Return warnings about moving averages that do not shrink with a run, shortened from `full_epochs`."""
    if clock.epochs >= full_epochs:
        return []
    full = replace(clock, epochs=full_epochs)
    decays = {"mix.decay": recipe.effective_mix.decay}
    decays |= {f"task.{task.name}.average": task.average for task in recipe.tasks if task.average is not None}
    fields: dict[Schedule, list[str]] = {}
    for name, decay in decays.items():
        if not (isinstance(decay, TimeConstant) and decay.over.unit == "run"):
            fields.setdefault(decay, []).append(name)
    warnings: list[str] = []
    for decay, names in fields.items():
        steps = _time_constant(decay, clock.total_steps, clock)
        before = _time_constant(decay, full.total_steps, full) / full.total_steps
        after = steps / clock.total_steps
        if steps > 1 and after > MIN_GROWTH * before:
            over = f"{100 * before:.2g}%" if before < 1 else "2%"
            warnings.append(
                f"{', '.join(names)}: a time constant of {steps:.0f} steps does not shrink with the run; it "
                f"is {before:.1%} of {full_epochs} epochs, but {after:.1%} of {clock.epochs}; use "
                f'{{ kind = "time-constant", over = "{over}" }} to scale it with the run'
            )
    return warnings


def _attack_warnings(recipe: Recipe) -> list[str]:
    """Return warnings about steps that are probably written as pixel values, such as 2/255."""
    warnings: list[str] = []
    for task in recipe.tasks:
        attack = getattr(task.objective.core, "attack", None)
        for part in attack.walk() if isinstance(attack, Attack) else ():
            steps, step = (getattr(part, name, None) for name in ("steps", "step"))
            if steps is not None and step is not None and steps * step < MIN_REACH:
                warnings.append(
                    f"the attack of {task.name} moves at most {steps * step:.3g} budgets: {steps} steps of "
                    f"{step:.3g}; step is a fraction of the budget, such as 0.25, not a pixel value"
                )
    return warnings


def _statistics_warnings(recipe: Recipe) -> list[str]:
    """Return warnings about separate passes of natural and adversarial images under a large budget."""
    warnings: list[str] = []
    for task in recipe.tasks:
        objective = task.objective.core
        if not isinstance(objective, HalfHalf) or objective.forward == "joint" or objective.beta in (0, 1):
            continue
        large = [str(threat) for threat in objective.threats() if _is_large(threat)]
        if large and recipe.effective_mix.buffers != "recalibrate-adversarial":
            warnings.append(
                f"{task.name} passes natural images and those of {', '.join(large)} separately, and averages "
                'their batch-norm statistics, which may leave no robustness; use forward = "joint"'
            )
    return warnings


def _is_large(threat: Threat) -> bool:
    return threat.norm.name == "Linf" and threat.eps >= MIN_LARGE_LINF


def _exchange_warnings(recipe: Recipe, clock: Clock) -> list[str]:
    """Return warnings about exchanges that never happen, overwrite learners, or come too often."""
    mix = recipe.effective_mix
    exchange = mix.exchange
    if exchange is None:
        return []
    every_step = exchange.when == "every-step"
    due = list(islice(exchange.due_steps(clock), MAX_EXAMINED))
    if not due:
        times = f"it starts at {exchange.start}, every {exchange.every}, of {recipe.epochs} epochs"
        return [f"no exchange ever happens: {times}"]
    warnings = _overwriting_warnings(recipe, clock, exchange, due)
    if isinstance(mix.rule, Outer) and due[0] > exchange.period(clock):
        reach = mix.rule.lr * (1 + mix.rule.momentum)
        warnings.append(
            f"the first exchange follows step {due[0]}, and the rule outer then moves {reach:.3g} times the "
            "way from the initial weights to the mixture; start exchanges earlier, for example at 0"
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


def _overwriting_warnings(recipe: Recipe, clock: Clock, exchange: Exchange, due: list[int]) -> list[str]:
    """Return warnings about exchanges at which the lead, or a learner with its own curve, has all shares."""
    shares = recipe.effective_mix.shares
    if shares is None or exchange.strength < 1:
        return []
    shares_at = {t: shares.at(t, clock, recipe.names) for t in due}
    warnings: list[str] = []
    for name in recipe.names if shares.lead is None else [shares.lead]:
        overwriting = [t for t in due if shares_at[t][name] == 1]
        if not overwriting:
            continue
        every_step = exchange.when == "every-step"
        times = [clock.epoch(t) if every_step else t / clock.steps_per_epoch for t in overwriting]
        epochs = list(dict.fromkeys(f"{time:g}" for time in times))
        if len(epochs) > MAX_LISTED:
            epochs[3:] = [f"... {epochs[-1]}"]
        examined = f"the first {len(due)}" if exchange.count_due(clock) > len(due) else f"{len(due)}"
        others = ", ".join(other for other in recipe.names if other != name)
        warnings.append(
            f"{len(overwriting)} of {examined} exchanges happen while the share of {name} is 1 "
            f"(at epoch {', '.join(epochs)}): they overwrite {others} with {name} alone"
        )
    return warnings


def _time_constant(decay: Schedule, t: int, clock: Clock) -> float:
    """Return the time constant of a moving average, in steps."""
    return 1 / (1 - decay(t, clock))
