"""Slow reference of RAMP: its loss image by image, and its projection tensor by tensor in numpy."""

from __future__ import annotations

import math

import numpy as np


def softmax(z):
    """The softmax of one list of logits."""
    largest = max(z)
    exponentials = [math.exp(logit - largest) for logit in z]
    return [value / sum(exponentials) for value in exponentials]


def divergence(a, b):
    """KL(softmax a || softmax b)."""
    p, q = softmax(a), softmax(b)
    return sum(p_k * (math.log(p_k) - math.log(q_k)) for p_k, q_k in zip(p, q, strict=True))


def plain_loss(z_t, z_s, z_b, y, lam):
    """CE(z_b, y) + lam * mean over S of KL(z_s || z_t), S = {i : argmax z_s(i) = y_i}."""
    fitted = sum(-math.log(softmax(z)[label]) for z, label in zip(z_b, y, strict=True)) / len(y)
    right = [i for i, label in enumerate(y) if max(range(len(z_s[i])), key=z_s[i].__getitem__) == label]
    paired = sum(divergence(z_s[i], z_t[i]) for i in right) / len(right) if right else 0.0
    return fitted + lam * paired


def trades_loss(z, z_t, z_s, z_b, y, lam, beta):
    """CE(z, y) + beta * mean KL(z || z_b) + lam * the same pairing."""
    pull = sum(divergence(a, b) for a, b in zip(z, z_b, strict=True)) / len(y)
    return plain_loss(z_t, z_s, z, y, lam) + beta * pull


def project_weights(w0, w_a, w_n, b):
    """w0 + (1 - b) g_a + b max(cos(g_a, g_n), 0) g_n for every tensor with a dimension; others from w_a."""
    projected = {}
    for name, start in w0.items():
        if start.ndim == 0:
            projected[name] = w_a[name]
            continue
        g_a, g_n = (w[name].astype(np.float64).ravel() - start.astype(np.float64).ravel() for w in (w_a, w_n))
        lengths = np.sqrt((g_a**2).sum()) * np.sqrt((g_n**2).sum())
        c = float(g_a @ g_n / lengths) if lengths > 0 else 0.0
        step = (1 - b) * g_a + b * max(c, 0.0) * g_n
        projected[name] = (start.astype(np.float64).ravel() + step).reshape(start.shape)
    return projected
