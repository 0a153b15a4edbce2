"""Measure a network: natural accuracy and accuracy under attack, stored example by example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from allrounder.assessment import Assessor
from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.base import Attack
from allrounder.attacks.search import Search
from allrounder.data.base import Split
from allrounder.modes import modes_restored
from allrounder.outcome import NATURAL, IntArray, Outcome
from allrounder.probes import Probe
from allrounder.rng import Draws

LANE = 125
"""Images of one forward pass: every pass has this shape, because another shape changes bits."""


def evaluate(
    model: nn.Module,
    split: Split,
    probes: Sequence[Probe] = (),
    *,
    seed: int = 0,
    lane: int = LANE,
    progress: Callable[[str, int, int], None] = lambda probe, done, total: None,
) -> Outcome:
    """Run the natural probe and the given ones on every image of a split.

    Only images that are classified correctly are attacked; the others keep their natural prediction. Attacks
    are crafted on the folded network, and the verdict is the plain network's. Randomness is drawn per
    example, by its position in the split: the first images of a split fare alike with and without the rest.
    """
    assessor, everything = Assessor(model, split, lane), torch.arange(len(split))
    # A network that draws random numbers even now gets the seed's.
    with modes_restored(model), torch.no_grad(), Draws(seed).at("evaluate").ambient():
        model.eval()
        natural = torch.empty(len(split), dtype=torch.int64)
        for rows, real in assessor.lanes(everything):
            natural[rows[:real]] = assessor.logits(assessor.load(rows)[0]).argmax(1)[:real].cpu()
            progress(NATURAL, int(rows[real - 1]) + 1, len(split))
        correct = natural == split.labels
        predicted, stage = {NATURAL: natural}, {NATURAL: torch.where(correct, -1, 0)}
        for probe in probes:
            verdict, broken_by = natural.clone(), stage[NATURAL].clone()
            for number, attack in enumerate(stages_of(probe.attack, probe.threat), start=1):
                left = everything[broken_by == -1]
                if len(left) == 0:
                    break
                tell = partial(_tell, progress, str(probe), len(left))
                found = assessor.predictions(attack, probe.threat, _draws(seed, probe, attack), left, tell)
                verdict[left] = found
                broken_by[left] = torch.where(found != split.labels[left], number, -1)
            predicted[str(probe)], stage[str(probe)] = verdict, broken_by
    stages = {str(probe): [str(a) for a in stages_of(probe.attack, probe.threat)] for probe in probes}
    facts = {"seed": seed, "lane": lane, "images": len(split), "stages": stages}
    return Outcome(_array(split.labels), _arrays(predicted), facts, stage=_arrays(stage))


def _tell(progress: Callable[[str, int, int], None], probe: str, total: int, done: int) -> None:
    progress(probe, done, total)


def _draws(seed: int, probe: Probe, attack: Attack) -> Draws:
    """A search draws the same alone and in a sequence, so a sequence's verdict is that of its parts
    together."""
    if isinstance(attack, Search):
        return Draws(seed).at("search", str(attack), str(probe.threat))
    return Draws(seed).at("probe", str(probe))


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, IntArray]:
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: Tensor) -> IntArray:
    return tensor.numpy().astype(np.int64)
