"""Corruptions that add noise to single pixels."""

from __future__ import annotations

from allrounder.data.corruptions.base import Uint8Array, normal, poisson, to_float, to_uint8, uniform
from allrounder.rng import Rng


def gaussian_noise(x: Uint8Array, scale: float, rng: Rng) -> Uint8Array:
    """Add Gaussian noise of one scale, as in low light."""
    return to_uint8(to_float(x) + normal(rng, x.shape, scale=scale))


def shot_noise(x: Uint8Array, photons: float, rng: Rng) -> Uint8Array:
    """Replace values by Poisson counts; white is `photons` on average."""
    return to_uint8(poisson(rng, to_float(x) * photons) / photons)


def impulse_noise(x: Uint8Array, share: float, rng: Rng) -> Uint8Array:
    """Set a share of the values to black or white with equal probability."""
    u = uniform(rng, x.shape)
    noisy = x.copy()
    noisy[u < share] = 255
    noisy[u < share / 2] = 0
    return noisy


def speckle_noise(x: Uint8Array, scale: float, rng: Rng) -> Uint8Array:
    """Add Gaussian noise in proportion to the pixel value."""
    pixels = to_float(x)
    return to_uint8(pixels + pixels * normal(rng, x.shape, scale=scale))
