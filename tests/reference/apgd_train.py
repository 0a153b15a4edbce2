"""A slow, literal twin of APGD for training: one example at a time, numpy and loops."""

from __future__ import annotations

import numpy as np
import torch

from tests.reference.apgd import changed, look, sparse_direction
from tests.reference.attacks import project


def wrong(model, x, y):
    """Whether one image is misclassified."""
    with torch.no_grad():
        return int(model(torch.from_numpy(x)[None])[0].argmax()) != y


def search(model, x, y, norm, eps, steps):
    """The point of highest loss, that loss, and whether any point was misclassified."""
    point = before = best = x.copy()
    loss, g = look(model, point, y, None, "ce")
    losses, best_loss, best_g, fooled = [loss], loss, g, wrong(model, point, y)
    share, old = 0.05, x.size
    if norm == "L1":
        step, period = eps, max(int(0.04 * steps), 1)
    else:
        step, period = 2 * eps, max(int(0.22 * steps), 1)
    due, reduced_last, best_at_last = period, True, best_loss
    for i in range(1, steps + 1):
        here = point
        if norm == "L1":
            point = project(norm, x, here + step * sparse_direction(g, share), eps)
        else:
            up = np.sign(g) if norm == "Linf" else g / (np.sqrt((g**2).sum()) + 1e-300)
            z = project(norm, x, here + step * up, eps)
            a = 1.0 if i == 1 else 0.75
            point = project(norm, x, here + a * (z - here) + (1 - a) * (here - before), eps)
        before = here
        loss, g = look(model, point, y, None, "ce")
        losses.append(loss)
        fooled = fooled or wrong(model, point, y)
        if loss > best_loss:
            best, best_loss, best_g = point, loss, g
        if i < due:
            continue
        if norm == "L1":
            count = changed(best, x)
            back = old > 0 and count / old < 0.95
            step = eps if back else max(step / 1.5, eps / 10)
            share, old = count / x.size / 1.5, count
            due += period
        else:
            rises = sum(losses[j] > losses[j - 1] for j in range(i - period + 1, i + 1))
            back = rises <= 0.75 * period or (not reduced_last and best_loss <= best_at_last)
            step = step / 2 if back else step
            reduced_last, best_at_last = back, best_loss
            period = max(period - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
            due += period
        if back:
            point, g = best, best_g
    return best, best_loss, fooled
