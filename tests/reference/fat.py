"""A slow, literal twin of the friendly search: one image at a time, numpy and loops."""

from __future__ import annotations

import torch

from tests.reference.attacks import ascend, gradient, project


def friendly(model, x, y, norm, eps, start, noise, *, steps, step, tau, loss="ce"):
    """Where the search of one image ends, and how many steps it took; noise has one array for every step."""
    with torch.no_grad():
        natural = model(torch.from_numpy(x)[None])[0]
    iterate, spare, taken = project(norm, x, x + start, eps), tau, 0
    for k in range(steps):
        with torch.no_grad():
            prediction = int(model(torch.from_numpy(iterate)[None])[0].argmax())
        if prediction != y:
            if spare == 0:
                break
            spare -= 1
        g = gradient(model, iterate, y, loss, natural)
        iterate = project(norm, x, iterate + step * eps * ascend(norm, g) + noise[k], eps)
        taken += 1
    return iterate, taken
