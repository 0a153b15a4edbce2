"""What an attack is, and `perturb`, the only door through which adversarial images leave.

An attack is trusted with nothing: its network is put back afterwards, and what it returns is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from allrounder.errors import ThreatError
from allrounder.inference.attack_view import lend
from allrounder.rng import Draws
from allrounder.threats.norms import Norm
from allrounder.threats.threat import AnyOf, Threat, in_box
from allrounder.types import Classifier, Images, Labels, NormLayers, Passes, PerExample, PerExampleBool


@dataclass(frozen=True, eq=False, kw_only=True)
class Crafted:
    """What an attack found.

    `loss` and `fooled` describe x where the attack knows them anyway, and are None where it would take
    another forward pass to learn them: training never asks.
    """

    x: Images
    passes: Passes
    loss: PerExample | None = None
    """The attack's own loss at x."""
    fooled: PerExampleBool | None = None
    """Whether the prediction at x differs from the label."""
    ever_fooled: PerExampleBool | None = None
    """Whether it differs at any point of the search, x or another; None where the attack does not say."""
    steps: Labels | None = None
    """The steps that every image took, of an attack that stops early."""


class Attack(ABC):
    """A search for images that a network gets wrong; the subclasses are final frozen values."""

    norms: ClassVar[frozenset[type[Norm]]]
    """The norms it can work in."""
    unions: ClassVar[bool] = False
    """Whether it searches a union of threats; then `run` also takes an AnyOf."""

    @abstractmethod
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Search inside the threat around x; only `perturb` and attacks made of attacks call this.

        Gradients are off, so that nothing builds a graph by accident: see `gradient` in pgd.py.
        """

    def parts(self) -> tuple[Attack, ...]:
        """The attacks this one is made of; none by default."""
        return ()

    def passes(self) -> Passes:
        """What a run on one batch takes, at most; known of attacks that train."""
        raise ValueError(f"{self}: searches until it succeeds, so its passes are not known; train with Pgd")

    def check_supports(self, threat: Threat | AnyOf) -> None:
        """Raise ValueError if this attack, or a part of it, cannot work under a threat."""
        if isinstance(threat, AnyOf) and not self.unions:
            raise ValueError(f"{self} searches one ball, got the union {threat}; give it one threat")
        for one in threat.threats if isinstance(threat, AnyOf) else (threat,):
            if type(one.norm) not in self.norms:
                known = ", ".join(sorted(norm.name for norm in self.norms))
                raise ValueError(f"{self} works in {known}, got the threat {one}; change one of them")
        for part in self.parts():
            part.check_supports(threat)


def perturb(
    attack: Attack,
    model: Classifier,
    x: Tensor,
    y: Tensor,
    threat: Threat | AnyOf,
    draws: Draws,
    *,
    norm_layers: NormLayers = "eval",
) -> Crafted:
    """Attack the images x with labels y: the only public door.

    The network's modes, gradient flags, `.grad` and (but for norm_layers = "train") buffers are as before
    when this returns or raises. What the attack hands out is verified (shape, finite, box, ball) and never
    repaired: a ThreatError means a bug in the attack. An empty batch comes back empty. Works under no_grad
    and inference_mode; a network that draws random numbers gets addressed ones.
    """
    _check_images(x)
    _check_labels(y, x)
    attack.check_supports(threat)
    if len(x) == 0:
        return Crafted(x=x.detach().clone(), passes=Passes())
    with torch.inference_mode(False), torch.no_grad(), draws.at("ambient").ambient():
        # Tensors made in inference mode cannot enter a graph; their clones can.
        x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y.long()))
        with lend(model, x, norm_layers) as lent:
            # check_supports has made sure that only attacks on unions get one.
            found = attack.run(_checked(lent, int(y.max())), x, y, cast(Threat, threat), draws)
    verify(f"{attack} under {threat}", found.x, x, threat)
    return Crafted(
        # A channels_last network leaves its layout on what it touched; the caller gets the layout of x.
        x=torch.empty_like(x).copy_(found.x.detach()),
        passes=found.passes,
        loss=None if found.loss is None else found.loss.detach(),
        fooled=found.fooled,
        ever_fooled=found.ever_fooled,
        steps=found.steps,
    )


SLACK = 1e-5
"""Rounding that what an attack returns is allowed."""


def _surely_in_box(x: Tensor, slack: float) -> bool:
    """Whether all images are finite and in [0, 1], in one look at them; a NaN is neither low nor high."""
    if not x.numel():
        return True
    low, high = cast(list[float], torch.stack(torch.aminmax(x)).tolist())
    return low >= -slack and high <= 1 + slack


def _check_images(x: Tensor) -> None:
    if x.dim() != 4 or x.dtype not in (torch.float32, torch.float64) or 0 in x.shape[1:]:
        # Half precision cannot hold the ball: rounding alone moves an image by up to a sixteenth of 8/255.
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        raise ValueError(f"images are {got}, expected float32 or float64 of shape (n, c, h, w); convert them")
    if _surely_in_box(x, 1e-6):
        return
    if bad := len(x) - int(x.isfinite().flatten(1).all(dim=1).sum()):
        raise ValueError(f"{bad} of {len(x)} images hold NaN or infinity, expected [0, 1]; check the data")
    if not in_box(x, 1e-6).all():
        got = f"[{float(x.min()):.6g}, {float(x.max()):.6g}]"
        raise ValueError(f"images lie in {got}, expected [0, 1]; put any normalisation inside the model")


def _check_labels(y: Tensor, x: Tensor) -> None:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        got = f"{y.dtype} of shape {tuple(y.shape)}"
        raise ValueError(
            f"labels are {got}, expected integers of shape ({len(x)},); give one class per image"
        )
    if len(y) and int(y.min()) < 0:
        raise ValueError(f"the smallest label is {int(y.min())}, expected 0 or more; drop unlabelled images")


def _checked(model: Classifier, highest: int) -> Classifier:
    """The network, with its answers checked to be logits that cover the highest label."""

    def answer(x: Tensor) -> Tensor:
        logits = model(x)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = tuple(getattr(logits, "shape", ())) or type(logits).__name__
            raise ValueError(f"the network returned {got}, expected logits of shape ({len(x)}, k); wrap it")
        if highest >= logits.shape[1]:
            known = f"expected at most {logits.shape[1] - 1}, the network's last class"
            raise ValueError(f"the largest label is {highest}, {known}; check labels and network")
        return logits

    return answer


def verify(who: str, x_adv: Tensor, x: Images, threat: Threat | AnyOf) -> None:
    """Raise ThreatError unless images are finite, in the box, and in the threat around x."""
    if (x_adv.shape, x_adv.dtype, x_adv.device) != (x.shape, x.dtype, x.device):
        got, expected = (f"{t.dtype} of shape {tuple(t.shape)} on {t.device}" for t in (x_adv, x))
        raise ThreatError(f"{who} returned {got}, expected {expected}; this is a bug in the attack")
    if _surely_in_box(x_adv, SLACK) and bool((threat.excess(x, x_adv) <= SLACK).all()):
        return
    if bad := len(x) - int(x_adv.isfinite().flatten(1).all(dim=1).sum()):
        cause = "either the network's gradients are not finite, or this is a bug in the attack"
        raise ThreatError(f"{who} returned {bad} of {len(x)} images with NaN or infinity; {cause}")
    if bad := len(x) - int(threat.contains(x, x_adv, slack=SLACK).sum()):
        ball = max(float(threat.excess(x, x_adv).max()), 0.0)
        box = max(float(-x_adv.min()), float(x_adv.max()) - 1, 0.0)
        raise ThreatError(
            f"{who} returned {bad} of {len(x)} images outside of it; the worst is {ball:.3g} beyond the ball "
            f"(in units of max(1, eps)) and {box:.3g} beyond [0, 1]; this is a bug in the attack"
        )
