"""Slow, literal transcriptions of the algorithm, with one monolithic average: the oracles of the trainer.

Only the data, the network and the random numbers are shared with the package; every rule is written out
again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]


@dataclass
class Duty:
    """What one learner does: its attack (none for natural training), learning rate, weight decay."""

    attack: Callable[[nn.Module, Tensor, Tensor, int], Tensor] | None
    lr: Callable[[int], float]
    weight_decay: float


def linf_pgd(eps: float, alpha: float, steps: int, start: Callable[[Tensor, int], Tensor]):
    """x <- clip(x + alpha sign(g)) from x + start, the network in evaluation mode."""

    def attack(model: nn.Module, x: Tensor, y: Tensor, t: int) -> Tensor:
        model.eval()
        x_adv = (x + start(x, t)).clamp(0, 1)
        for _ in range(steps):
            x_adv = x_adv.detach().requires_grad_()
            loss = F.cross_entropy(model(x_adv), y, reduction="sum")
            g = torch.autograd.grad(loss, x_adv)[0]
            x_adv = x_adv.detach() + alpha * g.sign()
            x_adv = torch.min(torch.max(x_adv, x - eps), x + eps).clamp(0, 1)
        return x_adv

    return attack


def l2_pgd(eps: float, alpha: float, steps: int, start: Callable[[Tensor, int], Tensor]):
    """The same with a normalised gradient and the L2 ball, one image at a time."""

    def project(x: Tensor, x_adv: Tensor) -> Tensor:
        d = x_adv - x
        length = float(d.norm())
        return (x + (d * eps / length if length > eps else d)).clamp(0, 1)

    def attack(model: nn.Module, x: Tensor, y: Tensor, t: int) -> Tensor:
        model.eval()
        x_adv = torch.stack([project(a, a + d) for a, d in zip(x, start(x, t), strict=True)])
        for _ in range(steps):
            x_adv = x_adv.detach().requires_grad_()
            loss = F.cross_entropy(model(x_adv), y, reduction="sum")
            g = torch.autograd.grad(loss, x_adv)[0]
            moved = x_adv.detach()
            x_adv = torch.stack(
                [project(a, b + alpha * v / (v.norm() + 1e-12)) for a, b, v in zip(x, moved, g, strict=True)]
            )
        return x_adv

    return attack


def floats(model: nn.Module) -> State:
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def sgd_(model: nn.Module, velocity: State, loss: Tensor, lr: float, weight_decay: float) -> None:
    """v <- 0.9 v + (g + wd theta); theta <- theta - lr v."""
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for name, parameter, gradient in zip(names, model.parameters(), gradients, strict=True):
            gradient = gradient + weight_decay * parameter
            velocity[name] = 0.9 * velocity[name] + gradient if name in velocity else gradient.clone()
            parameter -= lr * velocity[name]


def algorithm(
    start: nn.Module,
    duties: list[Duty],
    batches: Callable[[int], tuple[Tensor, Tensor]],
    total: int,
    decay: float,
    shares: Callable[[int], list[float]],
    due: Callable[[int], bool],
) -> Iterator[tuple[State, list[State]]]:
    """Algorithms 1 and 2 of Generalist++: yields theta_g and every theta_W after each step."""
    models = [copy.deepcopy(start) for _ in duties]
    velocities: list[State] = [{} for _ in duties]
    theta_g = {name: tensor.clone() for name, tensor in floats(start).items()}
    for t in range(1, total + 1):
        x, y = batches(t)
        for model, velocity, duty in zip(models, velocities, duties, strict=True):
            inputs = x if duty.attack is None else duty.attack(model, x, y, t).detach()
            model.train()
            sgd_(model, velocity, F.cross_entropy(model(inputs), y), duty.lr(t), duty.weight_decay)
        gammas = shares(t)
        for name in theta_g:
            mixture = sum(gamma * floats(model)[name] for gamma, model in zip(gammas, models, strict=True))
            theta_g[name] = decay * theta_g[name] + (1 - decay) * mixture
        if due(t):
            for model in models:
                model.load_state_dict(theta_g, strict=False)
        yield theta_g, [floats(model) for model in models]


def released(
    start: nn.Module,
    at: Duty,
    st: Duty,
    batches: Callable[[int], tuple[Tensor, Tensor]],
    epochs: int,
    steps: int,
    start_epoch: float,
    every: int,
) -> Iterator[tuple[State, list[State]]]:
    """The released loop, made to start: yields the global shadow and the two learners after each step.

    Both learners use the adversarial one's rate. Shadows decay by min(0.999, (u + 1) / (u + 10)) after u
    updates; the global one follows the mixture of the two others' shadows. In due epochs both learners are
    overwritten after every batch; velocities and shadows stay.
    """

    def gamma(epoch: int) -> float:
        knots, values = [0, epochs / 3, 2 * epochs / 3, epochs], [1, 1, 1, 0.4]
        for left, right, low, high in zip(knots, knots[1:], values, values[1:], strict=False):
            if left <= epoch <= right:
                return low + (high - low) * (epoch - left) / (right - left)
        raise AssertionError

    model_at, model_st = copy.deepcopy(start), copy.deepcopy(start)
    teacher_at, teacher_st, theta_g = ({n: v.clone() for n, v in floats(start).items()} for _ in range(3))
    velocity_at: State = {}
    velocity_st: State = {}
    updates = 0
    for epoch in range(1, epochs + 1):
        for step in range(1, steps + 1):
            t = (epoch - 1) * steps + step
            x, y = batches(t)
            decay = min(0.999, (updates + 1) / (updates + 10))
            assert at.attack is not None
            x_adv = at.attack(model_at, x, y, t).detach()
            model_at.train()
            sgd_(model_at, velocity_at, F.cross_entropy(model_at(x_adv), y), at.lr(t), at.weight_decay)
            for name, tensor in floats(model_at).items():
                teacher_at[name] = decay * teacher_at[name] + (1 - decay) * tensor
            model_st.train()
            sgd_(model_st, velocity_st, F.cross_entropy(model_st(x), y), at.lr(t), st.weight_decay)
            for name, tensor in floats(model_st).items():
                teacher_st[name] = decay * teacher_st[name] + (1 - decay) * tensor
            for name in theta_g:
                mixture = gamma(epoch) * teacher_at[name] + (1 - gamma(epoch)) * teacher_st[name]
                theta_g[name] = decay * theta_g[name] + (1 - decay) * mixture
            updates += 1
            if epoch >= start_epoch and epoch % every == 0:
                model_at.load_state_dict(theta_g, strict=False)
                model_st.load_state_dict(theta_g, strict=False)
            yield theta_g, [floats(model_at), floats(model_st)]
