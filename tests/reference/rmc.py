"""Slow reference of robust mode connectivity: the bend of the curve, and a point of it.

Only the batches and the random points are shared with the package; every rule is written out again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]
Attack = Callable[[nn.Module, Tensor, Tensor, int], Tensor]


def phi(s: float, w1: State, c: State, w2: State) -> State:
    """The quadratic Bezier curve, one number at a time."""
    point: State = {}
    for name, bend in c.items():
        flat = [
            (1 - s) * (1 - s) * a + 2 * s * (1 - s) * b + s * s * d
            for a, b, d in zip(*(t.flatten().tolist() for t in (w1[name], bend, w2[name])), strict=True)
        ]
        point[name] = torch.tensor(flat, dtype=bend.dtype).reshape(bend.shape)
    return point


def parameters(model: nn.Module) -> State:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def load_parameters(model: nn.Module, weights: State) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights[name])


def train_bend(
    model: nn.Module,
    w1: State,
    w2: State,
    batches: Iterable[tuple[Tensor, Tensor]],
    place: Callable[[int], float],
    attack: Attack,
    lr: float,
    weight_decay: float,
) -> State:
    """Train the control point with SGD and momentum 0.9; `model` brings the running statistics.

    The loss is CE(f_phi(x'), y) + weight_decay / 2 |phi|^2, differentiated with respect to c as a whole.
    """
    c = {name: (w1[name] + w2[name]) / 2 for name in w1}
    velocity: State = {}
    for t, (x, y) in enumerate(batches, start=1):
        s = place(t)
        load_parameters(model, phi(s, w1, c, w2))
        x_adv = attack(model, x, y, t)
        model.train()
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in c.items()}
        curve = {
            name: (1 - s) ** 2 * w1[name] + 2 * s * (1 - s) * leaf + s**2 * w2[name]
            for name, leaf in leaves.items()
        }
        logits = torch.func.functional_call(model, curve, (x_adv,))
        penalty = sum((tensor.square().sum() for tensor in curve.values()), torch.zeros(()))
        loss = F.cross_entropy(logits, y) + 0.5 * weight_decay * penalty
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for (name, tensor), g in zip(c.items(), gradients, strict=True):
            velocity[name] = g if name not in velocity else 0.9 * velocity[name] + g
            c[name] = tensor - lr * velocity[name]
    return c


def with_statistics(model: nn.Module, weights: State, batches: Iterable[Tensor]) -> nn.Module:
    """A copy with these weights and the mean of the batch statistics of natural images."""
    network = copy.deepcopy(model)
    load_parameters(network, weights)
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    norms = {name: m for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for name, layer in norms.items():

        def note(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            x = given[0].transpose(0, 1).flatten(1)
            seen.setdefault(name, []).append((x.mean(1), x.var(1)))

        layer.register_forward_pre_hook(note)
    network.train()
    with torch.no_grad():
        for x in batches:
            network(x)
        for name, layer in norms.items():
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.copy_(torch.stack([m for m, _ in seen[name]]).mean(0))
            layer.running_var.copy_(torch.stack([v for _, v in seen[name]]).mean(0))
            layer._forward_pre_hooks.clear()
    return network.eval()
