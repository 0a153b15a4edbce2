"""A training step as the released code of Generalist takes it, in our own words, for comparison.

Its costs are kept: contiguous images and weights; attack steps that also compute parameter gradients; moving
averages that read the whole state of a network again for every tensor of it; two forward passes of averaged
networks a batch that only a log wants, with autograd on; these networks refreshed by full copies of their
state. Left out, in its favour, is how it reads images: it is given the batches that ours has prepared.

Released is Generalist-D (NT+Linf). For Generalist-T a third learner is treated as the other two are.
"""

from __future__ import annotations

import copy
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.objectives import Adversarial
from allrounder.recipe.task import Task
from allrounder.threats.threat import Threat

State = dict[str, Tensor]


@final
class Shadow:
    """A moving average: a copy of a state that follows others, and a network to try it with."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self.values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.backup: State = {}
        self.updates = 0

    def follow(self, models: list[nn.Module], shares: list[float]) -> None:
        """One step of the average of a mixture; every name reads all of every state."""
        decay = min(0.999, (self.updates + 1) / (self.updates + 10))
        self.updates += 1
        for name, kept in self.values.items():
            mixture = sum(
                share * model.state_dict()[name] for share, model in zip(shares, models, strict=True)
            )
            kept.copy_(decay * kept + (1 - decay) * mixture)

    def refresh(self) -> nn.Module:
        """The network with the average in it; what it held is kept aside."""
        self.backup = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.values)
        return self.model


@final
class Released:
    """The networks, optimisers and averages of the released loop."""

    def __init__(self, tasks: tuple[Task, ...], start: nn.Module) -> None:
        self.threats = [
            task.objective.threat if isinstance(task.objective, Adversarial) else None for task in tasks
        ]
        self.models = [copy.deepcopy(start) for _ in tasks]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
            for model in self.models
        ]
        self.teachers = [Shadow(start) for _ in tasks]
        self.mixed = Shadow(start)
        self.noise = np.random.default_rng(0)
        self.log: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch: every learner descends and is averaged, the global average follows, the log is fed."""
        for model, optimizer, teacher, threat in zip(
            self.models, self.optimizers, self.teachers, self.threats, strict=True
        ):
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            inputs = x if threat is None else self.attack(model, x, y, threat)
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), y)
            loss.backward()
            optimizer.step()
            teacher.follow([model], [1.0])
        networks = [teacher.refresh() for teacher in self.teachers]
        self.mixed.follow(networks, [1 / len(networks)] * len(networks))
        for model in networks[:2]:
            self.log.append(float((model(x).argmax(1) == y).float().mean()))

    def attack(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        """Ten steps of PGD, each of which leaves gradients on the parameters too."""
        model.eval()
        eps, linf = threat.eps, threat.norm.name == "Linf"
        noise = torch.from_numpy(self.noise.uniform(-eps, eps, tuple(x.shape))).float()
        x_adv = (x + noise).clamp(0, 1)
        for _ in range(10):
            x_adv = x_adv.detach().requires_grad_()
            F.cross_entropy(model(x_adv), y).backward()
            g = x_adv.grad
            assert g is not None
            if linf:
                moved = x_adv.detach() + eps / 4 * g.sign()
                x_adv = torch.min(torch.max(moved, x - eps), x + eps).clamp(0, 1)
            else:
                d = x_adv.detach() + eps / 4 * g / (_length(g) + 1e-12) - x
                x_adv = (x + d * (eps / (_length(d) + 1e-12)).clamp(max=1)).clamp(0, 1)
        return x_adv.detach()


def _length(d: Tensor) -> Tensor:
    return d.flatten(1).norm(dim=1)[:, None, None, None]
