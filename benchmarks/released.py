"""A training step of the released code of Generalist, rewritten for comparison.

It keeps the costs of that code: contiguous images and weights; attack steps that also compute parameter
gradients; moving averages that read the whole state of a network again for each of its tensors; two forward
passes of averaged networks per batch, with autograd, only for a log; and full copies of the averaged states
into networks. Loading images is left out in its favour: it gets the batches that our code has prepared.

The released code is Generalist-D (NT+Linf). For Generalist-T, a third learner is treated like the other two.
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
class MovingAverage:
    """A moving average of state dicts, and a network to load it into."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        self.values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.backup: State = {}
        self.updates = 0

    def update(self, models: list[nn.Module], shares: list[float]) -> None:
        """Move the average towards a mixture of networks; every name reads all states as a whole."""
        decay = min(0.999, (self.updates + 1) / (self.updates + 10))
        self.updates += 1
        for name, value in self.values.items():
            mixture = sum(
                share * model.state_dict()[name] for share, model in zip(shares, models, strict=True)
            )
            value.copy_(decay * value + (1 - decay) * mixture)

    def network(self) -> nn.Module:
        """The network with the averaged weights; the weights that it had are copied to `backup`."""
        self.backup = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.values)
        return self.model


@final
class ReleasedTrainer:
    """The networks, optimisers and averages of the released loop."""

    def __init__(self, tasks: tuple[Task, ...], start: nn.Module) -> None:
        objectives = [task.objective for task in tasks]
        threats = [goal.threat if isinstance(goal, Adversarial) else None for goal in objectives]
        self.threats = [threat if isinstance(threat, Threat) else None for threat in threats]
        self.models = [copy.deepcopy(start) for _ in tasks]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
            for model in self.models
        ]
        self.teachers = [MovingAverage(start) for _ in tasks]
        self.global_average = MovingAverage(start)
        self.noise = np.random.default_rng(0)
        self.log: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take one step with every learner, update its average and the global one, and log accuracies."""
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
            teacher.update([model], [1.0])
        networks = [teacher.network() for teacher in self.teachers]
        self.global_average.update(networks, [1 / len(networks)] * len(networks))
        for model in networks[:2]:
            self.log.append(float((model(x).argmax(1) == y).float().mean()))

    def attack(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        """Ten steps of PGD, each of which also leaves gradients on the parameters."""
        model.eval()
        eps = threat.eps
        is_linf = threat.norm.name == "Linf"
        noise = torch.from_numpy(self.noise.uniform(-eps, eps, tuple(x.shape))).float()
        x_adv = (x + noise).clamp(0, 1)
        for _ in range(10):
            x_adv = x_adv.detach().requires_grad_()
            F.cross_entropy(model(x_adv), y).backward()
            g = x_adv.grad
            assert g is not None
            if is_linf:
                stepped = x_adv.detach() + eps / 4 * g.sign()
                x_adv = torch.min(torch.max(stepped, x - eps), x + eps).clamp(0, 1)
            else:
                d = x_adv.detach() + eps / 4 * g / (_l2_norm(g) + 1e-12) - x
                x_adv = (x + d * (eps / (_l2_norm(d) + 1e-12)).clamp(max=1)).clamp(0, 1)
        return x_adv.detach()


def _l2_norm(d: Tensor) -> Tensor:
    return d.flatten(1).norm(dim=1)[:, None, None, None]
