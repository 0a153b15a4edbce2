"""Slow reference of adaptive gradient reconstruction: one number at a time, in plain Python."""

from __future__ import annotations

import math


def reference_reconstruct(g1: list[float], g2: list[float], clip: float) -> list[float]:
    """The edited gradient of one flattened parameter tensor."""
    dot = sum(a * b for a, b in zip(g1, g2, strict=True))
    size1, size2 = (math.sqrt(sum(a * a for a in g)) for g in (g1, g2))
    cs = dot / (size1 * size2 + 1e-20)
    if cs <= 0:
        g = list(g1)
        if size2 > 0:
            g = [a - dot / size2**2 * b for a, b in zip(g1, g2, strict=True)]
    else:
        g = [cs * b + (1 - cs) * a for a, b in zip(g1, g2, strict=True)]
    size = math.sqrt(sum(a * a for a in g))
    return [a * clip / size for a in g] if size > clip else g
