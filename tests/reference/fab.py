"""Slow, literal twins of FAB and its displacements: one example at a time, in loops, two passes a step."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch


def length(norm, d):
    d = np.abs(d).ravel()
    return {"Linf": d.max, "L2": lambda: np.sqrt((d * d).sum()), "L1": d.sum}[norm]()


def rooms(x, w, c):
    """The direction of every coordinate towards the plane, and the room up to the wall it points to."""
    towards = -np.sign(c) * np.sign(w)
    return towards, np.where(towards > 0, 1 - x, np.where(towards < 0, x, 0.0))


def displace(norm, x, w, c):
    """The shortest d with c + w.d = 0 and x + d in the box: walk over the sorted kinks, or fill in order."""
    shape, x, w = x.shape, x.ravel(), w.ravel()
    towards, room = rooms(x, w, c)
    size, need, amount = np.abs(w), abs(c), np.zeros(x.size)
    movable = [i for i in range(x.size) if size[i] > 0]
    if sum(size[i] * room[i] for i in movable) <= need:
        return (towards * room).reshape(shape)
    if norm == "L1":
        for i in sorted(movable, key=lambda i: -size[i]):
            amount[i] = min(room[i], need / size[i])
            need -= size[i] * amount[i]
            if need <= 0:
                break
        return (towards * amount).reshape(shape)
    speed = {i: 1.0 if norm == "Linf" else size[i] for i in movable}
    level, slope = 0.0, sum(size[i] * speed[i] for i in movable)
    for i in sorted(movable, key=lambda i: room[i] / speed[i]):
        kink = room[i] / speed[i]
        if need <= slope * (kink - level):
            break
        need -= slope * (kink - level)
        slope -= size[i] * speed[i]
        level = kink
    level += need / slope
    for i in movable:
        amount[i] = min(level * speed[i], room[i])
    return (towards * amount).reshape(shape)


def shortest(norm, x, w, c):
    """The least length of such a d by trying every way to put coordinates on a wall; infinite if none is."""
    _, room = rooms(x, w, c)
    size, need, found = np.abs(w), abs(c), []
    for walls in product((False, True), repeat=x.size):
        amount = np.where(walls, room, 0.0)
        rest, free = need - (size * amount).sum(), [i for i in range(x.size) if not walls[i] and size[i] > 0]
        tries = [[i] for i in free] if norm == "L1" else [free][: len(free)]
        if abs(rest) <= 1e-12:
            found.append(length(norm, amount))
        for some in tries:
            speed = size[some] if norm == "L2" else np.ones(len(some))
            attempt = amount.copy()
            attempt[some] = rest / (size[some] * speed).sum() * speed
            if (attempt >= -1e-12).all() and (attempt <= room + 1e-12).all():
                found.append(length(norm, attempt))
    return min(found, default=np.inf)


def logits_of(model, x):
    with torch.no_grad():
        return model(torch.from_numpy(x)[None])[0].numpy()


def difference(model, x, y, t):
    """z_t - z_y at x, and its gradient."""
    x = torch.from_numpy(x)[None].requires_grad_()
    z = model(x)[0]
    df = z[t] - z[y]
    (w,) = torch.autograd.grad(df, x)
    return float(df.detach()), w[0].numpy()


def fab(model, x, y, norm, *, target, steps, start=None, alpha_max=0.1, eta=1.05, beta=0.9):
    """The points that the steps reached, and the least length of a misclassified one; target None is any."""
    p = x if start is None else start
    points, best = [], np.inf
    dual = {"Linf": "L1", "L2": "L2", "L1": "Linf"}[norm]
    for _ in range(steps):
        classes = [k for k in range(len(logits_of(model, x))) if k != y] if target is None else [target]
        planes = []
        for df, w in (difference(model, p, y, t) for t in classes):
            b = (w * p).sum() - df
            planes.append((abs(df) / max(length(dual, w), 1e-300), len(planes), w, b))
        _, _, w, b = min(planes)
        d1 = displace(norm, p, w, (w * p).sum() - b)
        d2 = displace(norm, x, w, (w * x).sum() - b)
        n1, n2 = max(length(norm, d1), 1e-8), max(length(norm, d2), 1e-8)
        a = min(n1 / (n1 + n2), alpha_max)
        p = np.clip((1 - a) * (p + eta * d1) + a * (x + eta * d2), 0, 1)
        points.append(p)
        if logits_of(model, p).argmax() != y:
            best = min(best, length(norm, p - x))
            p = x + beta * (p - x)
    return points, best
