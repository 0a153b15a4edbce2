"""APGD for training, as in E-AT and RAMP: few steps from the image itself, without early stopping."""

from __future__ import annotations

from typing import final

import torch

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.search.base import RoundInit, query_model
from allrounder.config.fields import PositiveInt, Share, frozen_config
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@frozen_config
class ApgdTrain(Attack):
    """APGD for training: starts at x, takes all steps for every image, returns the point of highest loss.

    x_0 = x, then the steps and checkpoints of APGD on the cross-entropy; x' = argmax_i CE(f(x_i), y). Unlike
    APGD, it continues after an image is fooled. In L1 the first step moves a twentieth of the coordinates
    instead of a fifth. It uses no random numbers. The last point needs no gradient, so there is one more
    forward pass than backward passes.
    Croce and Hein, 2022, Adversarial robustness against multiple and single lp-threat models via quick
    fine-tuning of robust classifiers.
    """

    steps: PositiveInt = 10
    rho: Share = 0.75
    """The step is halved unless more than this share of steps raises the loss; not used in L1."""

    def passes(self) -> Passes:
        """One pair per point, except for the last point, which takes a forward pass only."""
        return Passes(self.steps + 1, self.steps)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Run all steps of APGD, and record which images were fooled at any point."""
        search = Apgd(steps=self.steps, rho=self.rho)
        num_coordinates = (x[0].numel() + 19) // 20
        # Without targets, the natural logits are not used.
        round_init = RoundInit(x, y, torch.zeros_like(x.flatten(1)[:, :1]), threat, rng, 0)
        state = search.begin_at(x.clone(), round_init, y, num_coordinates)
        fooled = ever_fooled = torch.zeros_like(y, dtype=torch.bool)
        for step in range(self.steps):
            result = query_model(search, model, state, threat, True)
            assert result.loss is not None
            wrong = result.logits.argmax(1) != y
            better = (result.loss[0] > state["best_loss"]) | (step == 0)
            fooled = torch.where(better, wrong, fooled)
            ever_fooled = ever_fooled | wrong
            state = search.tell(state, result, threat)
        last = search.ask(state, threat)
        logits = model(last)
        loss = cross_entropy(logits, y)
        wrong = logits.argmax(1) != y
        better = loss > state["best_loss"]
        return AttackResult(
            x=torch.where(better[:, None, None, None], last, state["best"]),
            loss=torch.where(better, loss, state["best_loss"]),
            fooled=torch.where(better, wrong, fooled),
            ever_fooled=ever_fooled | wrong,
            passes=self.passes(),
        )
