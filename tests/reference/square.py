"""A slow, literal twin of Square: one example at a time, numpy and loops, with the random numbers given."""

from __future__ import annotations

import math

import numpy as np

from tests.reference.attacks import l1_ball_and_box


def share(p, move):
    """The share of pixels in the window of a move, counted from 0."""
    for last, halvings in [(10, 0), (50, 1), (200, 2), (500, 3), (1000, 4), (2000, 5), (4000, 6), (6000, 7)]:
        if move <= last:
            return p / 2**halvings
    return p / 256 if move <= 8000 else p / 512


def side(p, h, w, norm, move):
    s = max(round(math.sqrt(share(p, move) * h * w)), 1 if norm == "Linf" else 3)
    if norm != "Linf" and s % 2 == 0:
        s += 1
    return min(s, h, w)


def length(norm, d):
    return math.sqrt((d**2).sum()) if norm == "L2" else float(np.abs(d).sum())


def unit(norm, d):
    return d / length(norm, d) if length(norm, d) > 0 else d


def pyramid(norm, h, w):
    """Growing squares around the middle, each laid on top of the others with less height."""
    heap = np.zeros((h, w))
    for j in range(max(h // 2, w // 2) + 1):
        for r in range(h):
            for q in range(w):
                if abs(r - h // 2) <= j and abs(q - w // 2) <= j:
                    heap[r, q] += 1 / (j + 1) ** (2 if norm == "L2" else 4)
    return unit(norm, heap)


def pattern(norm, s, turned):
    whole = np.zeros((s, s))
    whole[: s // 2] = pyramid(norm, s // 2, s)
    whole[s // 2 :] = -pyramid(norm, s - s // 2, s)
    whole = unit(norm, whole)
    return whole.T if turned else whole


def sign(u):
    return 1 if u < 0.5 else -1


def into(norm, x, d, eps):
    if norm == "L2":
        return np.clip(x + eps * unit("L2", d), 0, 1)
    return l1_ball_and_box(x, x + d, eps * (1 - 1e-6))


def stripes(x, eps, u):
    """u: one number for each channel and column."""
    start = np.zeros_like(x)
    for channel in range(x.shape[0]):
        for column in range(x.shape[2]):
            start[channel, :, column] = x[channel, :, column] + eps * sign(u[channel, column])
    return np.clip(start, 0, 1)


def tiles(norm, x, eps, u):
    """u: for each window one number for each channel, and one for the turn."""
    c, h, w = x.shape
    s = max(min(h, w) // 5, 1)
    top, left, d = (h % s) // 2, (w % s) // 2, np.zeros_like(x)
    for i in range(h // s):
        for j in range(w // s):
            for channel in range(c):
                down, right = top + i * s, left + j * s
                laid = sign(u[i, j, channel]) * pattern(norm, s, u[i, j, c] < 0.5)
                d[channel, down : down + s, right : right + s] += laid
    return into(norm, x, d, eps)


def corner(u, h, w, s):
    return int(np.float32(u[0]) * np.float32(h - s)), int(np.float32(u[1]) * np.float32(w - s))


def paint(x, best, eps, s, u):
    """Linf: u holds top, left, and one number for each channel."""
    (c, h, w), new = x.shape, best.copy()
    top, left = corner(u, h, w, s)
    for channel in range(c):
        new[channel, top : top + s, left : left + s] += 2 * eps * sign(u[2 + channel])
    return np.clip(np.clip(new, x - eps, x + eps), 0, 1)


def exchange(norm, x, best, eps, s, u, short):
    """L2 and L1: u holds top, left, top, left, the turn, and one number for each channel. Moves in L1 use
    all but the share `short` of the budget."""
    (c, h, w), d, p = x.shape, best - x, 2 if norm == "L2" else 1
    (top, left), (top2, left2) = corner(u, h, w, s), corner(u[2:], h, w, s)
    first, second = np.zeros((h, w), dtype=bool), np.zeros((h, w), dtype=bool)
    first[top : top + s, left : left + s] = True
    second[top2 : top2 + s, left2 : left2 + s] = True
    spare = (eps * (1 - short if norm == "L1" else 1)) ** p - length(norm, d) ** p
    after = d.copy()
    after[:, second] = 0
    for channel in range(c):
        old = d[channel, top : top + s, left : left + s]
        new = unit(norm, unit(norm, old) + pattern(norm, s, u[4] < 0.5) * sign(u[5 + channel]))
        budget = max(spare / c + length(norm, d[channel, first | second]) ** p, 0) ** (1 / p)
        after[channel, top : top + s, left : left + s] = new * budget * (c if norm == "L1" else 1)
    return into(norm, x, after, eps)


def begin(norm, x, eps, u):
    return stripes(x, eps, u) if norm == "Linf" else tiles(norm, x, eps, u)


def proposal(norm, x, best, eps, p, move, u, short=0.0):
    s = side(p, x.shape[1], x.shape[2], norm, move)
    return paint(x, best, eps, s, u) if norm == "Linf" else exchange(norm, x, best, eps, s, u, short)


def search(loss, norm, x, eps, p, start, moves, short=0.0):
    """The images asked about, and the lowest loss after each; start and moves are the random numbers."""
    best = begin(norm, x, eps, start)
    lowest = loss(best)
    path = [(best, lowest)]
    for move, u in enumerate(moves):
        new = proposal(norm, x, best, eps, p, move, u, short)
        found = loss(new)
        if found < lowest:
            best, lowest = new, found
        path.append((new, lowest))
    return path
