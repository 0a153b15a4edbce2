"""Slow, literal twins of the norms and the gradient attacks: one example at a time, numpy and loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F


def l1_ball_and_box(x0, x, eps):
    """The closest point to x among those in [0, 1] with sum|x' - x0| <= eps: walk over the sorted kinks."""
    shape, x0, x = x0.shape, x0.ravel(), x.ravel()
    d = x - x0
    size = np.abs(d)
    room = np.where(d > 0, 1 - x0, x0)

    def total(level):
        return sum(min(max(a - level, 0.0), r) for a, r in zip(size, room, strict=True))

    level = 0.0
    if total(0.0) > eps:
        kinks = sorted({0.0, *size.tolist(), *np.maximum(size - room, 0).tolist()})
        for left, right in pairwise(kinks):
            high, low = total(left), total(right)
            if low <= eps:  # the sum is linear between two kinks
                level = left + (high - eps) * (right - left) / (high - low)
                break
    kept = np.array([min(max(a - level, 0.0), r) for a, r in zip(size, room, strict=True)])
    return (x0 + np.sign(d) * kept).reshape(shape)


def project(norm, x0, x, eps):
    if norm == "Linf":
        return np.minimum(np.maximum(np.minimum(np.maximum(x, x0 - eps), x0 + eps), 0), 1)
    if norm == "L2":
        d = x - x0
        length = np.sqrt((d**2).sum())
        return np.clip(x0 + d * (min(1.0, eps / length) if length > 0 else 1.0), 0, 1)
    return l1_ball_and_box(x0, x, eps)


def ascend(norm, g, density=0.05):
    if norm == "Linf":
        return np.sign(g)
    if norm == "L2":
        length = np.sqrt((g**2).sum())
        return g / length if length > 0 else np.zeros_like(g)
    flat, direction = g.ravel(), np.zeros(g.size)
    k = max(1, round(density * g.size))
    order = sorted(range(g.size), key=lambda i: -abs(flat[i]))[:k]
    for i in order:
        direction[i] = np.sign(flat[i])
    count = np.abs(direction).sum()
    return (direction / count if count > 0 else direction).reshape(g.shape)


def loss_of(name, z, y, natural, kappa=50.0):
    """The loss of one example's logits z."""
    if name == "ce":
        return torch.logsumexp(z, 0) - z[y]
    if name == "kl":
        p = torch.softmax(natural, 0)
        return (p * (torch.log(p) - torch.log(torch.softmax(z, 0)))).sum()
    if name in ("lse", "lse-drift"):
        target = torch.softmax(natural, 0) if name == "lse-drift" else torch.eye(len(z), dtype=z.dtype)[y]
        return torch.stack([(torch.softmax(z, 0)[k] - target[k]) ** 2 for k in range(len(z))]).sum()
    best_other = max((z[k] for k in range(len(z)) if k != y), key=lambda one: float(one.detach()))
    if name == "margin":
        return best_other - z[y]
    return -F.relu(z[y] - best_other + kappa)


def gradient(model, x, y, loss, natural, kappa=50.0):
    x = torch.from_numpy(x)[None].requires_grad_()
    (g,) = torch.autograd.grad(loss_of(loss, model(x)[0], y, natural, kappa), x)
    return g[0].numpy()


def climb(model, x, y, norm, eps, start, *, steps, step, loss="ce", kappa=50.0, decay=None):
    """All iterates x_0 .. x_steps of one example; with a decay, along MIM's sum of normalised gradients."""
    with torch.no_grad():
        natural = model(torch.from_numpy(x)[None])[0]
    iterate = project(norm, x, x + start, eps)
    path, m = [iterate], np.zeros_like(x)
    for _ in range(steps):
        g = gradient(model, iterate, y, loss, natural, kappa)
        m = g if decay is None else decay * m + g / (np.abs(g).mean() + 1e-12)
        iterate = project(norm, x, iterate + step * eps * ascend(norm, m), eps)
        path.append(iterate)
    return path
