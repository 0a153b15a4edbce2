"""APGD as E-AT and RAMP train with it: few steps from the image itself, for all images alike."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.search.base import Question, inquire
from allrounder.config.fields import Count, Share, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@value
class ApgdTrain(Attack):
    """APGD for training: from x itself, all steps for every image, and the point of highest loss counts.

    x_0 = x, then the steps and checkpoints of APGD on the cross-entropy, x' = argmax_i CE(f(x_i), y). Unlike
    APGD it goes on where an image is fooled. In L1 the first step moves a twentieth of the coordinates, not a
    fifth. Nothing is drawn. The loss at the last point is needed and its gradient is not, so that `steps`
    steps take one forward pass more than backward passes.
    Croce and Hein, 2022, Adversarial robustness against multiple and single lp-threat models via quick
    fine-tuning of robust classifiers.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 10
    rho: Share = 0.75
    """The share of steps that must raise the loss, else the step is halved; plays no part in L1."""

    def passes(self) -> Passes:
        """A pair at the image and at every point but the last, which takes a forward pass."""
        return Passes(self.steps + 1, self.steps)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Ask as APGD does, and remember who was ever fooled."""
        search, kept = Apgd(steps=self.steps, rho=self.rho), (x[0].numel() + 19) // 20
        # Without targets, natural logits play no part.
        question = Question(x, y, torch.zeros_like(x.flatten(1)[:, :1]), threat, draws, 0)
        state = search.begin_at(x.clone(), question, y, kept)
        fooled = ever = torch.zeros_like(y, dtype=torch.bool)
        for step in range(self.steps):
            answer = inquire(search, model, state, threat, True)
            assert answer.loss is not None
            wrong = answer.logits.argmax(1) != y
            better = (answer.loss[0] > state["best_loss"]) | (step == 0)
            fooled, ever = torch.where(better, wrong, fooled), ever | wrong
            state = search.tell(state, answer, threat)
        last = search.ask(state, threat)
        logits = model(last)
        loss, wrong = cross_entropy(logits, y), logits.argmax(1) != y
        better = loss > state["best_loss"]
        return Crafted(
            x=torch.where(better[:, None, None, None], last, state["best"]),
            loss=torch.where(better, loss, state["best_loss"]),
            fooled=torch.where(better, wrong, fooled),
            ever_fooled=ever | wrong,
            passes=self.passes(),
        )
