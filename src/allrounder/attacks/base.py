"""The `Attack` interface, and `perturb`, the only public function that runs an attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast, final

import torch
from torch import Tensor

from allrounder.config.phases import Phased
from allrounder.errors import InputError, RecipeError, ThreatError
from allrounder.inference.attack_view import attack_view
from allrounder.inference.chain import Pullback
from allrounder.inference.fold import Folded
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import AnyOf, Threat, in_box
from allrounder.types import (
    BatchNormMode,
    Classifier,
    Images,
    Labels,
    Logits,
    Passes,
    PerExample,
    PerExampleBool,
)

VERIFY_SLACK = 1e-5
"""The rounding error that the result of an attack may have, in units of max(1, eps)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AttackResult:
    """The images that an attack returns, and what it knows about them without a further forward pass."""

    x: Images
    passes: Passes
    loss: PerExample | None = None
    """The loss of the attack at x."""
    fooled: PerExampleBool | None = None
    """Whether the prediction at x differs from the label."""
    ever_fooled: PerExampleBool | None = None
    """Whether the prediction differs at any point that was tried; None if the attack does not record it."""
    steps: Labels | None = None
    """The number of steps that each image took, for an attack that stops early."""


class Attack(Phased, ABC):
    """A search for images that a network misclassifies; subclasses are final frozen values."""

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    """The norms that the attack supports."""
    supports_unions: ClassVar[bool] = False
    """Whether the attack searches a union of threats; then `run` also takes an AnyOf."""
    is_white_box: ClassVar[bool] = True
    """Whether the attack uses gradients of the network that it attacks; of a cascade, ask the stages."""
    splits_batches: ClassVar[bool] = False
    """Whether the attack runs on parts of a batch, so that batch-norm must not compute statistics over it."""
    stops_at_success: ClassVar[bool] = False
    """Whether an image that is fooled costs no further passes; then the cost is not known in advance."""
    names: ClassVar[tuple[str, ...]] = ()
    """The names that `parse_attack` has for this attack; a number after a name sets its steps."""

    @abstractmethod
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Search inside the threat around x, with gradients disabled: see `loss_grad` in pgd.py.

        Called only by `perturb` and by attacks that contain attacks.
        """

    def sub_attacks(self) -> tuple[Attack, ...]:
        """The attacks that this attack contains; none by default."""
        return ()

    def walk(self) -> Iterator[Attack]:
        """Yield this attack, and all attacks inside it."""
        yield self
        for attack in self.sub_attacks():
            yield from attack.walk()

    def stages(self, norm: Norm) -> tuple[Attack, ...]:
        """The attacks that this attack runs in sequence under a norm; most run only themselves."""
        return (self,)

    def address(self) -> str | None:
        """The text that selects random numbers in an evaluation and names results; None: those of the probe.

        It is data: renaming a class or adding a field must not change it.
        """
        return None

    def fills_idle_slots(self, classes: int) -> bool:
        """Whether a batch with fewer images than slots can use the others to finish earlier."""
        return False

    def passes(self) -> Passes:
        """The most passes that a run on one batch takes; known only for attacks that can train."""
        raise InputError(f"{self}: searches until it succeeds, so its passes are not known; train with Pgd")

    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        """The most passes of a run under a threat, or under a union of several; by default `passes`."""
        return self.passes()

    def evaluation_passes(self, classes: int) -> Passes:
        """The passes on an image that stays robust, including the final prediction."""
        return self.passes() + Passes(forwards=1)

    def label(self) -> str:
        """The short name of this attack in results and progress reports, without its settings."""
        return type(self).__name__.lower()

    def describe_budget(self, classes: int) -> str:
        """What this attack spends on one image at most, in words, for a network with `classes` classes."""
        return str(self)

    def check_batch_norm(self, norm_layers: BatchNormMode) -> None:
        """Raise RecipeError if this attack, or an attack that it contains, needs batch-norm in eval mode."""
        if self.splits_batches and norm_layers != "eval":
            problem = "attacks a batch in parts, whose statistics are not those of the batch"
            raise RecipeError(f'{self} {problem}; set norm_layers = "eval", got "{norm_layers}"')
        for attack in self.sub_attacks():
            attack.check_batch_norm(norm_layers)

    def check_supports(self, threat: Threat | AnyOf) -> None:
        """Raise RecipeError if this attack, or an attack that it contains, does not support a threat."""
        if isinstance(threat, AnyOf) and not self.supports_unions:
            fix = "give it one threat, or put it into worst-of or random-of"
            raise RecipeError(f"{self} searches one ball, got the union {threat}; {fix}")
        for member in threat.threats:
            if type(member.norm) not in self.norms:
                names = ", ".join(sorted(norm.name for norm in self.norms))
                raise RecipeError(f"{self} works in {names}, got the threat {member}; change one of them")
        for attack in self.sub_attacks():
            attack.check_supports(threat)


def perturb(
    attack: Attack,
    model: Classifier,
    x: Tensor,
    y: Tensor,
    threat: Threat | AnyOf,
    rng: Rng,
    *,
    norm_layers: BatchNormMode = "eval",
) -> AttackResult:
    """Attack the images x with labels y. This is the only public entry point of attacks.

    Restores the modes, gradient flags, `.grad` and buffers of the network, also after an exception; with
    norm_layers = "train" its running statistics change. The result is checked (shape, finite, box, ball) and
    never corrected: a ThreatError means a bug in the attack. An empty batch is returned as it is. Works under
    no_grad and inference_mode. Random layers of the network draw from `rng`.
    """
    _check_images(x)
    _check_labels(y, x)
    attack.check_supports(threat)
    attack.check_batch_norm(norm_layers)
    if len(x) == 0:
        return AttackResult(x=x.detach().clone(), passes=Passes())
    with torch.inference_mode(False), torch.no_grad(), rng.fold_in("ambient").seed_global():
        # Inference tensors cannot enter a graph; their clones can.
        x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y.long()))
        with attack_view(model, x, norm_layers) as view:
            checked = CheckedNetwork(view, int(y.max()))
            # check_supports has made sure that only attacks on unions get one.
            result = attack.run(checked, x, y, cast(Threat, threat), rng)
    check_adversarial(f"{attack} under {threat}", result.x, x, threat)
    # A channels_last network changes the memory format of its outputs; return the format of x.
    x_adv = torch.empty_like(x).copy_(result.x.detach())
    return replace(result, x=x_adv, loss=None if result.loss is None else result.loss.detach())


def select_rows(rows: PerExampleBool, tensor: Tensor, other: Tensor) -> Tensor:
    """A new tensor with the given rows of `tensor`, and the remaining rows of `other`."""
    return torch.where(rows.view(-1, *[1] * (tensor.dim() - 1)), tensor, other)


def _all_in_box(x: Tensor, slack: float) -> bool:
    """Whether all images are finite and in [0, 1] up to `slack`, in one pass over them; False for NaN."""
    if not x.numel():
        return True
    low, high = cast(list[float], torch.stack(torch.aminmax(x)).tolist())
    return low >= -slack and high <= 1 + slack


def _check_images(x: Tensor) -> None:
    if x.dim() != 4 or x.dtype not in (torch.float32, torch.float64) or 0 in x.shape[1:]:
        # Half precision is too coarse: rounding alone moves an image by up to a sixteenth of 8/255.
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        raise InputError(f"images are {got}, expected float32 or float64 of shape (n, c, h, w); convert them")
    if _all_in_box(x, 1e-6):
        return
    if bad := len(x) - int(x.isfinite().flatten(1).all(dim=1).sum()):
        raise InputError(f"{bad} of {len(x)} images hold NaN or infinity, expected [0, 1]; check the data")
    if not in_box(x, 1e-6).all():
        got = f"[{float(x.min()):.6g}, {float(x.max()):.6g}]"
        raise InputError(f"images lie in {got}, expected [0, 1]; put any normalisation inside the model")


def _check_labels(y: Tensor, x: Tensor) -> None:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        got = f"{y.dtype} of shape {tuple(y.shape)}"
        fix = "give one class per image"
        raise InputError(f"labels are {got}, expected integers of shape ({len(x)},); {fix}")
    if len(y) and int(y.min()) < 0:
        raise InputError(f"the smallest label is {int(y.min())}, expected 0 or more; drop unlabelled images")


@final
class CheckedNetwork:
    """A network that raises InputError unless it returns logits that cover the highest label."""

    def __init__(self, network: Classifier, highest: int) -> None:
        self.network = network
        self.highest = highest

    def __call__(self, x: Tensor) -> Tensor:
        """Compute and check the logits."""
        logits = self.network(x)
        self._check(logits, x)
        return logits

    def vjp(self, x: Images) -> tuple[Logits, Pullback] | None:
        """See `Folded.vjp`; None for other networks."""
        found = self.network.vjp(x) if isinstance(self.network, Folded) else None
        if found is not None:
            self._check(found[0], x)
        return found

    def _check(self, logits: object, x: Tensor) -> None:
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
            got = tuple(getattr(logits, "shape", ())) or type(logits).__name__
            raise InputError(f"the network returned {got}, expected logits of shape ({len(x)}, k); wrap it")
        if self.highest >= logits.shape[1]:
            expected = f"expected at most {logits.shape[1] - 1}, the network's last class"
            raise InputError(f"the largest label is {self.highest}, {expected}; check labels and network")


def check_adversarial(source: str, x_adv: Tensor, x: Images, threat: Threat | AnyOf) -> None:
    """Raise ThreatError unless x_adv is finite, in the box and in the threat around x, naming the source."""
    if (x_adv.shape, x_adv.dtype, x_adv.device) != (x.shape, x.dtype, x.device):
        got, expected = (f"{t.dtype} of shape {tuple(t.shape)} on {t.device}" for t in (x_adv, x))
        raise ThreatError(f"{source} returned {got}, expected {expected}; this is a bug in the attack")
    if _all_in_box(x_adv, VERIFY_SLACK) and bool((threat.excess(x, x_adv) <= VERIFY_SLACK).all()):
        return
    if bad := len(x) - int(x_adv.isfinite().flatten(1).all(dim=1).sum()):
        cause = "either the network's gradients are not finite, or this is a bug in the attack"
        raise ThreatError(f"{source} returned {bad} of {len(x)} images with NaN or infinity; {cause}")
    if bad := len(x) - int(threat.contains(x, x_adv, slack=VERIFY_SLACK).sum()):
        ball = max(float(threat.excess(x, x_adv).max()), 0.0)
        box = max(float(-x_adv.min()), float(x_adv.max()) - 1, 0.0)
        raise ThreatError(
            f"{source} returned {bad} of {len(x)} images outside the threat; the worst is {ball:.3g} beyond "
            f"the ball (in units of max(1, eps)) and {box:.3g} beyond [0, 1]; this is a bug in the attack"
        )
