"""Attacks that run other attacks: restarts, the worst of several threats, norms, sequences, transfer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from torch import nn
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, perturb, select_rows
from allrounder.attacks.losses import Identifier, cross_entropy
from allrounder.config.fields import OneOf, PositiveFloat, PositiveInt, frozen_config
from allrounder.errors import RecipeError
from allrounder.nn.digest import add_module_
from allrounder.rng import Rng
from allrounder.threats.norms import Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes, PerExample, PerExampleBool


def fixed_length_attacks() -> Mapping[str, type[Attack]]:
    """The table of attacks whose cost is known in advance."""
    # Imported on first use, because the tables contain the attacks of this file.
    from allrounder.attacks import ATTACKS

    return ATTACKS


def _all_attacks() -> Mapping[str, type[Attack]]:
    from allrounder.attacks import ATTACKS, SEARCHES

    return {**ATTACKS, **SEARCHES}


@final
@frozen_config
class Restarts(Attack):
    """Several runs of an attack with different random starts; keeps the best result for each example.

    The best result is the first that fools the network, otherwise the one of highest loss. Stops as soon as
    all examples are fooled.
    """

    attack: Annotated[Attack, OneOf(fixed_length_attacks)]
    """The attack to run; it determines the supported norms."""
    count: PositiveInt = 5
    """The number of runs, including the first."""

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        x_adv, passes = x, Passes()
        loss = torch.full_like(x[:, 0, 0, 0], float("-inf"))
        fooled = torch.zeros_like(y, dtype=torch.bool)
        for number in range(self.count):
            result = self.attack.run(model, x, y, threat, rng.fold_in("restart", number))
            new_loss, new_fooled, extra_passes = _loss_and_fooled(result, model, y)
            # Not (new_loss > loss), so that a NaN is kept and `perturb` detects it.
            better = ~fooled & (new_fooled | ~(new_loss <= loss))
            x_adv = select_rows(better, result.x, x_adv)
            loss = torch.where(better, new_loss, loss)
            fooled = fooled | new_fooled
            passes = passes + result.passes + extra_passes
            if fooled.all():
                break
        return AttackResult(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    def passes(self) -> Passes:
        """The passes of `count` runs, each with one more forward pass to compare the results."""
        return (self.attack.passes() + Passes(forwards=1)) * self.count

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.attack,)


@final
@frozen_config
class WorstOf(Attack):
    """Runs an attack under each threat and keeps the candidate of highest cross-entropy for each image.

    x' = argmax_p CE(f(x'_p), y), where x'_p is the result under threat p; the first one wins ties. Each
    threat costs one more forward pass for the cross-entropy, because the attack may use another loss.
    """

    supports_unions: ClassVar[bool] = True

    attack: Annotated[Attack, OneOf(fixed_length_attacks)]
    """The attack to run; it determines the supported norms."""

    @override
    def check_supports(self, threat: Threat | AnyOf) -> None:
        for member in threat.threats:
            self.attack.check_supports(member)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, rng: Rng) -> AttackResult:
        x_adv, passes = x, Passes()
        loss = torch.full_like(x[:, 0, 0, 0], float("-inf"))
        fooled = torch.zeros_like(y, dtype=torch.bool)
        for number, member in enumerate(threat.threats):
            result = self.attack.run(model, x, y, member, rng.fold_in("threat", number))
            logits = model(result.x)
            new_loss = cross_entropy(logits, y)
            # Not (new_loss > loss), so that a NaN is kept and `perturb` detects it.
            worse = ~(new_loss <= loss)
            x_adv = select_rows(worse, result.x, x_adv)
            loss = torch.where(worse, new_loss, loss)
            fooled = torch.where(worse, logits.argmax(1) != y, fooled)
            passes = passes + result.passes + Passes(forwards=1)
        return AttackResult(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    @override
    def passes(self) -> Passes:
        return self.attack.passes() + Passes(forwards=1)

    @override
    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        compared = (self.attack.passes_under((threat,)) + Passes(forwards=1) for threat in threats)
        return sum(compared, Passes())


@final
@frozen_config
class RandomOf(Attack):
    """Runs an attack on each image under one threat, chosen at random: many threats cost as much as one.

    The choice is independent for every image and every run, and uniform unless there are weights. A batch is
    attacked in parts, one for each threat; together the parts take the passes of one run on the whole batch.
    Batch-norm is in eval mode.
    """

    supports_unions: ClassVar[bool] = True
    splits_batches: ClassVar[bool] = True

    attack: Annotated[Attack, OneOf(fixed_length_attacks)]
    """The attack to run; it determines the supported norms."""
    weights: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)] | None = None
    """How often each threat is chosen, relative to the others and in the order of the threats; by default all
    equally often."""

    def __post_init__(self) -> None:
        if any(attack.supports_unions for attack in self.attack.walk()):
            raise ValueError(f"{self.attack} takes several threats itself; use it without random-of")

    @override
    def check_supports(self, threat: Threat | AnyOf) -> None:
        if self.weights is not None and len(self.weights) != len(threat.threats):
            got = f"{len(self.weights)} weights for {len(threat.threats)} threats"
            raise RecipeError(
                f"{self}: got {got}, expected one weight for each of {threat}; change one of them"
            )
        for member in threat.threats:
            self.attack.check_supports(member)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, rng: Rng) -> AttackResult:
        members = threat.threats
        # Draws are made for the whole batch, so that a part gets the same numbers on any number of ranks.
        is_addressed = rng.rows is not None or rng.shard is not None
        rng = rng if is_addressed else rng.for_shard(range(len(x)), len(x))
        u = rng.fold_in("choice").uniform(torch.empty(len(x), dtype=torch.float64))
        choice = self._choose(u, len(members))
        x_adv, passes = x.clone(), Passes()
        for number, member in enumerate(members):
            rows = (choice == number).nonzero().flatten()
            if len(rows) == 0:
                continue
            part = rows.to(x.device)
            part_rng = rng.select(rows).fold_in("threat", number)
            result = self.attack.run(model, x[part], y[part], member, part_rng)
            x_adv[part] = result.x
            passes = max(passes, result.passes, key=lambda passes: passes.work)
        return AttackResult(x=x_adv, passes=passes)

    def _choose(self, u: PerExample, count: int) -> Labels:
        """The number of a threat for every image, given uniform numbers in [0, 1)."""
        if self.weights is None:
            return (u * count).long()
        weights = torch.tensor(self.weights, dtype=u.dtype)
        bounds = weights.cumsum(0)[:-1] / weights.sum()
        return torch.bucketize(u, bounds, right=True)

    @override
    def passes(self) -> Passes:
        return self.attack.passes()

    @override
    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        each = (self.attack.passes_under((threat,)) for threat in threats)
        return max(each, key=lambda passes: passes.work)

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.attack,)


@final
@frozen_config
class PerNorm(Attack):
    """One attack for each norm, for methods whose numbers of steps depend on the norm."""

    linf: Annotated[Attack | None, OneOf(fixed_length_attacks, optional=True)] = None
    """The attack under threats in Linf."""
    l2: Annotated[Attack | None, OneOf(fixed_length_attacks, optional=True)] = None
    """The attack under threats in L2."""
    l1: Annotated[Attack | None, OneOf(fixed_length_attacks, optional=True)] = None
    """The attack under threats in L1."""

    def __post_init__(self) -> None:
        if not self.sub_attacks():
            raise ValueError("got no attack, expected at least one of linf, l2 and l1")

    def attack_in(self, norm: Norm) -> Attack:
        """The attack of a norm; raise ValueError if there is none."""
        attack = getattr(self, norm.name.lower())
        if attack is None:
            raise ValueError(f"{self} has no attack in {norm.name}; set its field {norm.name.lower()}")
        return attack

    @override
    def check_supports(self, threat: Threat | AnyOf) -> None:
        if isinstance(threat, AnyOf):
            raise ValueError(
                f"{self} searches one ball, got the union {threat}; put it into worst-of or random-of"
            )
        self.attack_in(threat.norm).check_supports(threat)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        return self.attack_in(threat.norm).run(model, x, y, threat, rng)

    @override
    def passes(self) -> Passes:
        return max((attack.passes() for attack in self.sub_attacks()), key=lambda passes: passes.work)

    @override
    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        return sum((self.attack_in(threat.norm).passes_under((threat,)) for threat in threats), Passes())

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return tuple(attack for attack in (self.linf, self.l2, self.l1) if attack is not None)


@final
@frozen_config
class Cascade(Attack):
    """A sequence of attacks; each runs only on the images that are still classified correctly."""

    stops_at_success: ClassVar[bool] = True

    attacks: Annotated[tuple[Annotated[Attack, OneOf(_all_attacks)], ...], Field(min_length=1)]
    """The attacks, in order."""

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        return run_cascade(self.attacks, model, x, y, threat, rng)

    @override
    def stages(self, norm: Norm) -> tuple[Attack, ...]:
        return tuple(stage for attack in self.attacks for stage in attack.stages(norm))

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return self.attacks


@final
@frozen_config
class Transfer(Attack):
    """Images that an attack crafts on another network, the source.

    `perturb` runs the attack on the source: in eval mode, folded where possible, and restored afterwards.
    The network under attack is not evaluated here, and the passes are those of the source. Prefer attacks
    that continue after a success, such as Pgd or Mim: one that stops at its first success returns images that
    barely fool the source. Papernot et al., 2016, Transferability in machine learning.
    """

    is_white_box: ClassVar[bool] = False

    attack: Attack
    """The attack to run on the source; it determines the supported norms."""
    source: Classifier
    """The network to craft on, with the same classes in the same order."""
    name: Identifier
    """The name of the source in results. Give a function another name if it changes; of a module, the text of
    this attack also has a digest."""

    @cached_property
    def digest(self) -> str:
        """A digest of the weights and buffers of the source; empty for a source that is not a module."""
        if not isinstance(self.source, nn.Module):
            return ""
        digest = hashlib.sha256()
        add_module_(digest, self.source)
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        digest = f", digest={self.digest!r}" if self.digest else ""
        return f"Transfer(attack={self.attack!r}, name={self.name!r}{digest})"

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Craft on the source, with the random numbers of a direct attack on it; `model` is not used."""
        try:
            result = perturb(self.attack, self.source, x, y, threat, rng)
        except (ValueError, RuntimeError) as error:
            error.add_note(f"This happened on {self.name}, the source of {self}.")
            raise
        return AttackResult(x=result.x, passes=result.passes)

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.attack,)


def run_cascade(
    attacks: tuple[Attack, ...], model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng
) -> AttackResult:
    """Run attacks in order, each on the images that the earlier ones did not fool."""
    fooled = model(x).argmax(1) != y
    x_adv, passes = x.clone(), Passes(forwards=1)
    for number, attack in enumerate(attacks):
        left = (~fooled).nonzero().flatten()
        if len(left) == 0:
            break
        result = attack.run(model, x[left], y[left], threat, rng.select(left).fold_in("stage", number))
        _, newly_fooled, extra_passes = _loss_and_fooled(result, model, y[left])
        x_adv[left[newly_fooled]] = result.x[newly_fooled]
        fooled[left[newly_fooled]] = True
        passes = passes + result.passes + extra_passes
    return AttackResult(x=x_adv, fooled=fooled, passes=passes)


def _loss_and_fooled(
    result: AttackResult, model: Classifier, y: Labels
) -> tuple[PerExample, PerExampleBool, Passes]:
    """Loss, fooled, and the passes spent on them: one forward pass if the attack did not report them."""
    if result.loss is not None and result.fooled is not None:
        return result.loss, result.fooled, Passes()
    logits = model(result.x)
    return cross_entropy(logits, y), logits.argmax(dim=1) != y, Passes(forwards=1)
