"""APGD for training, as in E-AT and RAMP: few steps from the image itself, without early stopping."""

from __future__ import annotations

from typing import final

import torch
from typing_extensions import override

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.base import Attack, AttackResult, select_rows
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

    x_0 = x, then the steps and checkpoints of APGD on the cross-entropy; x' = argmax_i CE(f(x_i), y). In L1
    the first step moves a twentieth of the coordinates instead of a fifth. It uses no random numbers. The
    last point needs no gradient, so there is one more forward pass than backward passes.
    Croce and Hein, 2022, Adversarial robustness against multiple and single lp-threat models via quick
    fine-tuning of robust classifiers.
    """

    steps: PositiveInt = 10
    rho: Share = 0.75
    """The step is halved unless more than this share of steps raises the loss; not used in L1."""

    @override
    def passes(self) -> Passes:
        return Passes(self.steps + 1, self.steps)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        search = Apgd(steps=self.steps, rho=self.rho)
        # Without targets, the natural logits are not used.
        round_init = RoundInit(x, y, torch.zeros_like(x.flatten(1)[:, :1]), threat, rng, 0)
        state = search.begin_at(x.clone(), round_init, y, (x[0].numel() + 19) // 20)
        fooled = ever_fooled = torch.zeros_like(y, dtype=torch.bool)
        step = 0
        while True:
            result = query_model(search, model, state, threat, step < self.steps)
            loss = cross_entropy(result.logits, y) if result.loss is None else result.loss[0]
            wrong = result.logits.argmax(1) != y
            better = (loss > state["best_loss"]) | (step == 0)
            fooled = torch.where(better, wrong, fooled)
            ever_fooled = ever_fooled | wrong
            if step == self.steps:
                x_adv = select_rows(better, result.x, state["best"])
                loss = torch.where(better, loss, state["best_loss"])
                passes = self.passes()
                return AttackResult(x=x_adv, loss=loss, fooled=fooled, ever_fooled=ever_fooled, passes=passes)
            state = search.tell(state, result, threat)
            step += 1
