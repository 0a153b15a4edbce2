"""Choose the shares of the learners on held-out images, for the mix rule `chosen`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from allrounder.nn.mixing.chosen import SHARES, THETA, Chosen, shares_of, simplex_grid, with_shares
from allrounder.training.mixer import Mixer
from allrounder.training.model_selection import ModelSelector
from allrounder.types import NamedTensors, Weights


def choose_shares(
    rule: Chosen, mixer: Mixer, selection: ModelSelector, set_statistics: Callable[[Weights], Weights]
) -> dict[str, Any]:
    """Choose the shares group by group and put them into the states of the mixer; return what is logged.

    The shares in force are measured first, and the first of the best replaces them, so that ties change
    nothing. All ranks call it together. Meanwhile they hold the weights of all learners. They divide the
    images among them and gather the results, so all of them choose the same shares.
    """
    # A state of this rank is shared with the mixer, so candidates must not change it.
    states = {name: dict(state) for name, state in zip(mixer.names, mixer.receive_states(), strict=True)}
    names = [name.removeprefix(THETA) for name in states[mixer.names[0]] if name.startswith(THETA)]
    groups = rule.group_names(names)
    for group in groups.values():  # equal shares become parts of their sum
        states = _set_shares(states, group, list(shares_of(states, group).values()))

    def measure(candidate: Mapping[str, NamedTensors]) -> float:
        return selection.score(set_statistics(rule.combine(candidate.values())))

    best, count = measure(states), 1
    for group, position in groups.items():
        in_force = states
        if _are_equal([name for name in names if rule.group_of(name) == group], list(states.values())):
            continue
        for shares in simplex_grid(len(states), rule.grid):
            candidate = _set_shares(in_force, position, shares)
            count += 1
            if (score := measure(candidate)) > best:
                best, states = score, candidate
    for name, state in mixer.states.items():
        state[SHARES].copy_(states[name][SHARES])
    passes = selection.score_passes() * count
    chosen = {group: shares_of(states, position) for group, position in groups.items()}
    counts = {"forwards": int(passes.forwards), "backwards": int(passes.backwards)}
    return {"shares": chosen, "score": best, "networks": count, **counts}


def average_shares(chosen: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the share of every learner, averaged over groups."""
    names = next(iter(chosen.values()))
    return {name: fmean(shares[name] for shares in chosen.values()) for name in names}


def _set_shares(
    states: Mapping[str, NamedTensors], group: int, shares: Sequence[float]
) -> dict[str, Weights]:
    return dict(zip(states, with_shares(list(states.values()), group, shares), strict=True))


def _are_equal(names: Sequence[str], states: Sequence[NamedTensors]) -> bool:
    """Whether all learners have the same tensors of these names."""
    keys = [f"{THETA}{name}" for name in names]
    return all(torch.equal(state[key], states[0][key]) for state in states[1:] for key in keys)
