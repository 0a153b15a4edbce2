"""Robust self-training: the weighted loss, and who labels what."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.time import Clock
from allrounder.data.base import Subset
from allrounder.errors import RecipeError
from allrounder.objectives.robust_self_training import RobustSelfTraining, weighted_cross_entropy
from allrounder.rng import Rng
from allrounder.system.checked_files import read_manifest
from allrounder.system.tensor_folders import read_tensors
from allrounder.threats.threat import Threat
from allrounder.training.data import train_val_split
from allrounder.training.pipelines.self_training import hide_labels, predict_labels
from allrounder.training.run import Run, load
from allrounder.types import Batch, Context
from tests.support.networks import Tiny, blobs, tiny
from tests.support.pipelines import pipeline
from tests.support.trainings import LINF, SOLO, go, recipe

DATA = blobs(12, 6)
SECOND = torch.arange(12) >= 5


def objective(**fields: float) -> RobustSelfTraining:
    attack = Pgd(steps=2, start="gaussian")
    return RobustSelfTraining(threat=Threat.parse("Linf:0.1"), attack=attack, **fields)  # pyright: ignore[reportArgumentType]


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().double()


def batch(second: bool = True) -> Batch:
    index = torch.arange(12)
    images = DATA.train.fetch(index).double()
    return Batch(images, DATA.train.labels[index], index, extra=SECOND if second else None)


def evaluated(of: RobustSelfTraining, given: Batch) -> tuple[float, AttackResult]:
    ctx, model = Context(1, Clock(2, 4), Rng(0), {}), network()
    crafted = of.craft(model, given, ctx)
    assert crafted is not None
    return float(of.loss(model.train(), given, crafted, ctx).total.detach()), crafted


def losses(crafted: AttackResult, given: Batch) -> tuple[list[float], list[float]]:
    """Natural and robust cross-entropies, image by image, in two forwards: crafted images first."""
    model = network().train()
    robust = F.cross_entropy(model(crafted.x), given.y, reduction="none")
    natural = F.cross_entropy(model(given.x), given.y, reduction="none")
    return natural.tolist(), robust.tolist()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("natural", "robust"), [(0.9, 0.5), (0.0, 1.0), (0.2, 0.7)])
def test_both_sets_count_by_their_weights(beta: float, natural: float, robust: float):
    given = batch()
    result, crafted = evaluated(objective(beta=beta, natural_weight=natural, robust_weight=robust), given)
    means = []
    for each, w in zip(losses(crafted, given), (natural, robust), strict=True):
        labelled, second = each[:5], each[5:]
        top = (1 - w) * sum(labelled) + w * sum(second)
        means.append(top / ((1 - w) * len(labelled) + w * len(second)))
    assert result == pytest.approx((1 - beta) * means[0] + beta * means[1], abs=1e-12)


def test_without_a_second_set_it_is_half_natural_and_half_adversarial():
    given = batch(second=False)
    result, crafted = evaluated(objective(), given)
    natural, robust = losses(crafted, given)
    assert result == pytest.approx(0.5 * sum(natural) / 12 + 0.5 * sum(robust) / 12, abs=1e-12)


def test_equal_weights_are_those_of_one_set():
    weights = {"natural_weight": 0.5, "robust_weight": 0.5}
    assert evaluated(objective(**weights), batch())[0] == pytest.approx(
        evaluated(objective(), batch(second=False))[0], abs=1e-12
    )


def test_a_batch_in_which_nothing_counts_has_no_loss_and_no_gradient():
    given = replace(batch(), extra=torch.ones_like(SECOND))
    logits = network()(given.x).detach().requires_grad_()
    loss = weighted_cross_entropy(logits, given, 0.0)
    loss.backward()
    assert float(loss.detach()) == 0 and logits.grad is not None and not logits.grad.any()


def test_without_weight_the_labels_of_the_second_set_do_not_matter():
    """But its images do, as they are in the batch statistics, as in the released code."""
    given, ctx, model = batch(), Context(1, Clock(2, 4), Rng(0), {}), network().train()
    crafted = objective().craft(model, given, ctx)
    other = replace(given, y=torch.where(SECOND, (given.y + 1) % 3, given.y))
    one, two = (float(objective().loss(model, b, crafted, ctx).total.detach()) for b in (given, other))
    assert one == two


@pytest.mark.parametrize("weight", ["natural_weight", "robust_weight"])
def test_weights_without_a_second_set_are_refused(weight: str):
    task = LINF.replace('"adversarial"', f'"rst", {weight} = 0.5')
    with pytest.raises(RecipeError, match=f"task.linf.objective.{weight}: is 0.5, but there is no second"):
        recipe(SOLO[: SOLO.index("[[task]]")] + task)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def of(hidden: float) -> Run:
        value = pipeline("self-training", ("hidden = 0.5", f"hidden = {hidden}"))
        return go(value, tmp_path_factory.mktemp("done") / "run")

    return of


@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_the_labels_are_the_teachers(hidden: float, done):
    run = done(hidden)
    _, pool = hide_labels(run.recipe, blobs(48), hidden)
    labels = read_tensors(run.folder / "labels", "labels")["labels"]
    teacher = load(run.folder / "stages" / "teacher", model=tiny)
    assert torch.equal(labels, predict_labels(teacher, pool))
    agree = float((labels == pool.labels).float().mean())
    assert read_manifest(run.folder / "labels")["agree"] == pytest.approx(agree)
    final = Run(run.folder / "stages" / "final").recipe
    assert final.extra is not None and final.extra.share == 0.5


def test_hidden_labels_are_an_equal_part_of_every_class_and_of_no_other_use():
    value, data = pipeline("self-training"), blobs(48)
    labelled, pool = hide_labels(value, data, 0.25)
    assert isinstance(labelled.train, Subset) and isinstance(pool, Subset)
    both = torch.cat([labelled.train.index, pool.index])
    assert torch.equal(both.sort().values, torch.arange(48))
    assert torch.bincount(pool.labels).tolist() == [4, 4, 4]
    again = hide_labels(value, data, 0.25)[1]
    assert isinstance(again, Subset) and torch.equal(pool.index, again.index)
    # The images held out for selection are among those with labels, and nobody trains on them.
    train, held_out = train_val_split(value, labelled)
    assert held_out is not None and len(train) + len(held_out) == 36


def test_labels_are_hidden_in_the_part_of_the_images_that_is_used():
    value = replace(pipeline("self-training"), train_images=24)
    labelled, unlabelled = hide_labels(value, blobs(48), 0.5)
    assert (len(labelled.train), len(unlabelled)) == (12, 12)


def test_where_nothing_is_hidden_the_images_trained_on_are_labelled():
    value, data = pipeline("self-training"), blobs(48)
    labelled, pool = hide_labels(value, data, 0.0)
    assert labelled is data and len(pool) == 36
    train, _ = train_val_split(value, data)
    assert isinstance(pool, Subset) and isinstance(train, Subset) and torch.equal(pool.index, train.index)


@pytest.mark.parametrize(
    ("hidden", "message"), [("0.001", "pipeline.hidden: hold out: got 0"), ("0.98", "validation.images")]
)
def test_sets_that_are_too_small_leave_no_folder(hidden: str, message: str, tmp_path: Path):
    value = pipeline("self-training", ("hidden = 0.5", f"hidden = {hidden}"))
    with pytest.raises(RecipeError, match=message):
        go(value, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_result_is_what_the_last_phase_became(done):
    run = done(0.5)
    final = Run(run.folder / "stages" / "final")
    for which in ("global", "best", "linf", "linf@best"):
        ours, theirs = run.weights(which), final.weights(which)
        assert all(torch.equal(ours[0][name], tensor) for name, tensor in theirs[0].items())
        assert ours[1]["t"] == theirs[1]["t"]
