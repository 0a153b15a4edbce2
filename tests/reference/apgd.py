"""A slow, literal twin of APGD: one example at a time, one radius after the other, numpy and loops."""

from __future__ import annotations

import math

import numpy as np
import torch

from tests.reference.attacks import loss_of, project


def climbed(name, z, y, target):
    """The loss of one example's logits z."""
    order = sorted(z, key=lambda one: -float(one.detach()))
    if name == "targeted ce":
        return z[target] - torch.logsumexp(z, 0)
    if name == "targeted margin":
        return z[target] - z[y]
    if name == "targeted dlr":
        return -(z[y] - z[target]) / (order[0] - (order[2] + order[3]) / 2 + 1e-12)
    if name == "dlr":
        return loss_of("margin", z, y, None) / (order[0] - order[2] + 1e-12)
    return loss_of(name, z, y, None)


def look(model, x, y, target, name):
    """Loss and gradient at one image."""
    x = torch.from_numpy(x)[None].requires_grad_()
    loss = climbed(name, model(x)[0], y, target)
    (g,) = torch.autograd.grad(loss, x)
    return float(loss.detach()), g[0].numpy()


def changed(a, b):
    """The number of coordinates in which two images differ by more than rounding."""
    return sum(abs(one - other) > 1e-12 for one, other in zip(a.ravel(), b.ravel(), strict=True))


def sparse_direction(g, share):
    """sign(g) where |g| is at least entry int((1 - share) d) of the ascending |g|; of length one in L1."""
    ascending = sorted(np.abs(g).ravel())
    # The small number undoes the rounding of a share that stands for a whole number of coordinates.
    at = min(max(math.floor((1 - share) * g.size + 1e-9), 0), g.size - 1)
    d = np.where(np.abs(g) >= ascending[at], np.sign(g), 0.0)
    return d / max(np.abs(d).sum(), 1)


def one_radius(model, x, y, target, name, norm, eps, start, steps, *, rho=0.75, warm=False):
    """All points from the start to the last step, and the best one."""
    d = x.size
    point = start
    loss, g = look(model, point, y, target, name)
    path, best, best_loss, best_g, before = [point], point, loss, g, point
    losses = [loss]
    step, period = (eps, max(int(0.04 * steps), 1)) if norm == "L1" else (2 * eps, max(int(0.22 * steps), 1))
    old = changed(start, x) if warm else d
    share = old / d / 1.5 if warm else 0.2
    since, halved_last, checked = 0, True, -np.inf
    for i in range(1, steps + 1):
        here = point
        if norm == "L1":
            point = project(norm, x, point + step * sparse_direction(g, share), eps)
        else:
            up = np.sign(g) if norm == "Linf" else g / max(np.sqrt((g**2).sum()), 1e-300)
            z = project(norm, x, here + step * up, eps)
            a = 1 if i == 1 else 0.75
            point = project(norm, x, here + a * (z - here) + (1 - a) * (here - before), eps)
        before = here
        path.append(point)
        loss, g = look(model, point, y, target, name)
        losses.append(loss)
        if loss > best_loss:
            best, best_loss, best_g = point, loss, g
        since += 1
        if since < period:
            continue
        since = 0
        if norm == "L1":
            new = changed(best, x)
            share = new / d / 1.5
            back = new < 0.95 * old
            step = eps if back else step / 1.5
            step = min(max(step, eps / 10), eps)
            old = new
        else:
            rises = sum(losses[j] > losses[j - 1] for j in range(i - period + 1, i + 1))
            back = rises <= rho * period or (not halved_last and best_loss <= checked)
            halved_last, checked = back, best_loss
            step = step / 2 if back else step
            period = max(period - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
        if back:
            point, g = best, best_g
    return path, best


def start_of(norm, x, eps, noise):
    """The start, from noise that is uniform on [0, 1) in Linf and normal otherwise."""
    if norm == "Linf":
        noise = 2 * noise - 1
        noise = eps * noise / np.abs(noise).max()
    elif norm == "L2":
        noise = eps * noise / np.sqrt((noise**2).sum())
    return project(norm, x, x + noise, eps)


def search(model, x, y, target, name, norm, eps, noise, steps, *, schedule=((1.0, 1.0),), rho=0.75):
    """All points that are asked about."""
    counts = [math.floor(share * steps) for _, share in schedule[:-1]]
    counts.append(steps - sum(counts))
    path, point = [], start_of(norm, x, schedule[0][0] * eps, noise)
    for number, ((radius, _), count) in enumerate(zip(schedule, counts, strict=True)):
        point = project(norm, x, point, radius * eps)
        part, point = one_radius(
            model, x, y, target, name, norm, radius * eps, point, count, rho=rho, warm=number > 0
        )
        path += part
    return path


def target_of(natural, y, rank):
    """The class of the rank-th largest natural logit among those that are not the label, counted from 1."""
    others = [k for k in range(len(natural)) if k != y]
    return sorted(others, key=lambda k: (-float(natural[k]), k))[rank - 1]
