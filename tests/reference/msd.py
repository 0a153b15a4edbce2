"""A slow, literal twin of multi steepest descent: one image at a time, numpy and loops."""

from __future__ import annotations

import numpy as np
import torch

from tests.reference.attacks import gradient


def cross_entropy(model, x, y):
    """Of one image."""
    with torch.no_grad():
        z = model(torch.from_numpy(x)[None])[0]
        return float(torch.logsumexp(z, 0) - z[y])


def l1_ball(d, eps):
    """The closest point of the L1 ball: take the same from every |d_i|, found by halving."""
    size = np.abs(d)
    if size.sum() <= eps:
        return d
    low, high = 0.0, size.max()
    for _ in range(200):
        level = (low + high) / 2
        if np.maximum(size - level, 0).sum() > eps:
            low = level
        else:
            high = level
    return np.sign(d) * np.maximum(size - high, 0)


def moved(norm, eps, alpha, x, delta, g, k):
    """One candidate: a steepest step, the projection on the ball of this norm, the box."""
    if norm == "Linf":
        d = np.clip(delta + alpha * np.sign(g), -eps, eps)
    elif norm == "L2":
        d = delta + alpha * g / (np.sqrt((g**2).sum()) + 1e-300)
        d = d * min(1.0, eps / np.sqrt((d**2).sum()))
    else:
        each, slopes, now = alpha / k, g.ravel().copy(), (x + delta).ravel()
        for i, value in enumerate(now):
            outward = (slopes[i] < 0 and value <= each) or (slopes[i] > 0 and value >= 1 - each)
            if outward or value <= 0 or value >= 1:
                slopes[i] = 0.0
        hot = np.zeros(slopes.size)
        for i in sorted(range(slopes.size), key=lambda i: -abs(slopes[i]))[:k]:
            hot[i] = np.sign(slopes[i])
        d = l1_ball(delta + each * hot.reshape(g.shape), eps)
    return np.clip(x + d, 0, 1) - x


def search(model, x, y, budgets, alphas, ks):
    """The best perturbation and its loss, with budgets and step lengths by norm and a k for every step."""
    delta, best, best_loss = np.zeros_like(x), np.zeros_like(x), 0.0
    for k in ks:
        g = gradient(model, x + delta, y, "ce", None)
        top, picked = -np.inf, None
        for norm in ("L1", "L2", "Linf"):
            if norm in budgets:
                candidate = moved(norm, budgets[norm], alphas[norm], x, delta, g, k)
                loss = cross_entropy(model, x + candidate, y)
                if loss >= top:
                    top, picked = loss, candidate
        delta = picked
        if top > best_loss:
            best, best_loss = picked, top
    return best, best_loss
