"""Slow reference augmentations: one image, one pixel, one number at a time.

Only the random numbers are shared with the package: `u` holds one row of uniform numbers per image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def crop_flip(x: Tensor, u: list[list[float]], pad: int, flip: bool, reflect: bool = False) -> Tensor:
    """Crop and flip; beyond the image it is black, or mirrored at the outermost pixels."""
    n, _, h, w = x.shape
    out = torch.zeros_like(x)
    for i in range(n):
        down, right = int(u[i][0] * (2 * pad + 1)) - pad, int(u[i][1] * (2 * pad + 1)) - pad
        for row in range(h):
            for column in range(w):
                across = w - 1 - column if flip and u[i][2] < 0.5 else column
                r, c = row + down, across + right
                if reflect:
                    r, c = _mirror(r, h), _mirror(c, w)
                if 0 <= r < h and 0 <= c < w:
                    out[i, :, row, column] = x[i, :, r, c]
    return out


def _mirror(position: int, size: int) -> int:
    if position < 0:
        return -position
    return 2 * (size - 1) - position if position >= size else position


def resized_crop(
    x: Tensor, u: list[list[float]], scale: tuple[float, float], ratio: tuple[float, float], flip: bool
) -> Tensor:
    """Read every pixel as the weighted mean of the four pixels around its source position."""
    n, channels, h, w = x.shape
    out = torch.zeros_like(x)
    for i in range(n):
        area = scale[0] + u[i][0] * (scale[1] - scale[0])
        aspect = math.exp(math.log(ratio[0]) + u[i][1] * (math.log(ratio[1]) - math.log(ratio[0])))
        tall, wide = min(1, math.sqrt(area / aspect)) * h, min(1, math.sqrt(area * aspect)) * w
        top, left = u[i][2] * (h - tall), u[i][3] * (w - wide)
        for row in range(h):
            for column in range(w):
                across = w - 1 - column if flip and u[i][4] < 0.5 else column
                y = min(max(top + (row + 0.5) * tall / h - 0.5, 0), h - 1)
                z = min(max(left + (across + 0.5) * wide / w - 0.5, 0), w - 1)
                for k in range(channels):
                    total = 0.0
                    for r in range(h):
                        for c in range(w):
                            near = max(0, 1 - abs(r - y)) * max(0, 1 - abs(c - z))
                            total += near * float(x[i, k, r, c]) if near else 0.0
                    out[i, k, row, column] = total
    return out


def window(h: int, w: int, a: float, b: float, tall: int, wide: int) -> set[tuple[int, int]]:
    """Return the pixels of a rectangle around the pixel that two numbers select, clipped to the image."""
    top, left = int(a * h) - tall // 2, int(b * w) - wide // 2
    pixels = {(row, column) for row in range(top, top + tall) for column in range(left, left + wide)}
    return {(row, column) for row, column in pixels if 0 <= row < h and 0 <= column < w}


def cutout(x: Tensor, u: list[list[float]], size: int) -> Tensor:
    out = x.clone()
    for i in range(len(x)):
        for row, column in window(x.shape[2], x.shape[3], u[i][0], u[i][1], size, size):
            out[i, :, row, column] = 0
    return out


def color_jitter(
    x: Tensor, u: list[list[float]], brightness: float, contrast: float, saturation: float, hue: float
) -> Tensor:
    """Apply the factors one after the other; rotate the hue by a matrix about (1, 1, 1)."""

    def clip(number: float) -> float:
        return min(max(number, 0.0), 1.0)

    def grey(pixel: list[float]) -> float:
        return pixel[0] if len(pixel) == 1 else 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]

    def factor(spread: float, number: float) -> float:
        return max(0, 1 - spread) + number * (1 + spread - max(0, 1 - spread))

    n, channels, h, w = x.shape
    out = torch.zeros_like(x)
    for i in range(n):
        pixels = [[float(x[i, k, r, c]) for k in range(channels)] for r in range(h) for c in range(w)]
        f = factor(brightness, u[i][0])
        pixels = [[clip(f * value) for value in pixel] for pixel in pixels]
        f, mean = factor(contrast, u[i][1]), sum(grey(pixel) for pixel in pixels) / len(pixels)
        pixels = [[clip(mean + f * (value - mean)) for value in pixel] for pixel in pixels]
        if channels == 3:
            f = factor(saturation, u[i][2])
            pixels = [[clip(grey(p) + f * (value - grey(p))) for value in p] for p in pixels]
            angle = 2 * math.pi * hue * (2 * u[i][3] - 1)
            cos, sin = math.cos(angle), math.sin(angle)
            same = cos + (1 - cos) / 3
            after, before = (1 - cos) / 3 - sin / math.sqrt(3), (1 - cos) / 3 + sin / math.sqrt(3)
            matrix = [[same, after, before], [before, same, after], [after, before, same]]
            pixels = [
                [clip(sum(t * v for t, v in zip(row, p, strict=True))) for row in matrix] for p in pixels
            ]
        for position, pixel in enumerate(pixels):
            out[i, :, position // w, position % w] = torch.tensor(pixel)
    return out


def beta(alpha: float, u: float, v: float) -> float:
    """Sample Beta(alpha, alpha) through the t-distribution with 2 alpha degrees of freedom."""
    t = math.sqrt(2 * alpha * (u ** (-1 / alpha) - 1)) * math.cos(2 * math.pi * v)
    return 0.5 + t / (2 * math.sqrt(2 * alpha + t * t))


def partners(u: list[list[float]]) -> list[int]:
    """Return the images in the order of their first random numbers."""
    return sorted(range(len(u)), key=lambda i: u[i][0])


def mixup(
    x: Tensor, y: Tensor, u: list[list[float]], alpha: float, chance: float
) -> tuple[Tensor, list[int], list[float]]:
    """Return images, second labels, and the weights of the first labels."""
    out = x.clone()
    weights: list[float] = []
    others = partners(u)
    for i, j in enumerate(others):
        drawn = beta(alpha, u[i][1], u[i][2]) if u[i][3] < chance else 1.0
        weights.append(max(drawn, 1 - drawn))
        out[i] = weights[i] * x[i] + (1 - weights[i]) * x[j]
    return out, [int(y[j]) for j in others], weights


def cutmix(
    x: Tensor, y: Tensor, u: list[list[float]], alpha: float, chance: float
) -> tuple[Tensor, list[int], list[float]]:
    """Return images, second labels, and the share of the image's own pixels."""
    h, w = x.shape[2:]
    out = x.clone()
    weights: list[float] = []
    others = partners(u)
    for i, j in enumerate(others):
        side = math.sqrt(beta(alpha, u[i][1], u[i][2]))
        cut = window(h, w, u[i][3], u[i][4], int(h * side), int(w * side)) if u[i][5] < chance else set()
        if len(cut) > h * w / 2:
            cut = {(row, column) for row in range(h) for column in range(w)} - cut
        for row, column in cut:
            out[i, :, row, column] = x[j, :, row, column]
        weights.append(1 - len(cut) / (h * w))
    return out, [int(y[j]) for j in others], weights
