"""Corruptions of single pixels."""

from __future__ import annotations

from allrounder.data.corruptions.base import Bytes, as_bytes, normal, poisson, uniform, unit
from allrounder.rng import Draws


def gaussian_noise(x: Bytes, scale: float, draws: Draws) -> Bytes:
    """A dark sensor: noise of one strength everywhere."""
    return as_bytes(unit(x) + normal(draws, x.shape, scale=scale))


def shot_noise(x: Bytes, photons: float, draws: Draws) -> Bytes:
    """Light in grains: white is this many photons on average."""
    return as_bytes(poisson(draws, unit(x) * photons) / photons)


def impulse_noise(x: Bytes, share: float, draws: Draws) -> Bytes:
    """This share of the values is black or white, with even chances."""
    u, changed = uniform(draws, x.shape), x.copy()
    changed[u < share], changed[u < share / 2] = 255, 0
    return changed


def speckle_noise(x: Bytes, scale: float, draws: Draws) -> Bytes:
    """Noise in proportion to the brightness."""
    pixels = unit(x)
    return as_bytes(pixels + pixels * normal(draws, x.shape, scale=scale))
