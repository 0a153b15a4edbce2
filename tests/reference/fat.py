"""Slow reference of the early-stopped search: one image at a time, numpy and loops."""

from __future__ import annotations

import torch

from tests.reference.attacks import ascend, gradient, project


def early_stop_search(model, x, y, norm, eps, start, noise, *, steps, step, tau, loss="ce"):
    """The last iterate of one image, and its number of steps; noise has one array for every step."""
    with torch.no_grad():
        natural = model(torch.from_numpy(x)[None])[0]
    iterate = project(norm, x, x + start, eps)
    remaining = tau
    taken = 0
    for k in range(steps):
        with torch.no_grad():
            prediction = int(model(torch.from_numpy(iterate)[None])[0].argmax())
        if prediction != y:
            if remaining == 0:
                break
            remaining -= 1
        g = gradient(model, iterate, y, loss, natural)
        iterate = project(norm, x, iterate + step * eps * ascend(norm, g) + noise[k], eps)
        taken += 1
    return iterate, taken
