"""Learners of one process that see the same images have them augmented once, and lose nothing by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from allrounder.data.augment import CropFlip
from allrounder.distributed import World
from allrounder.nn.state import EmaUpdate
from allrounder.rng import Rng
from allrounder.training.learner import AugmentCache, Learner
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from allrounder.types import Batch
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, Model, recipe

OTHERS = {
    "another smoothing": ("lr = 0.05", "lr = 0.05\nlabel_smoothing = 0.1", 1),
    "another stream": ("lr = 0.05", 'lr = 0.05\naugment_stream = "own"', 2),
    "another augmentation": ("pad = 1", "pad = 2", 2),
}
L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")
WORLD = World(0, 1, torch.device("cpu"))
SHARES = "curve = 0.6, rest = { natural = 0.5, l2 = 0.5 }"


class InPlace(Tiny):
    """Normalises the very images that it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5) if not x.requires_grad else x - 0.5)


def in_place() -> nn.Module:
    return InPlace()


def trio(l2: str, folder: Path, model: Model = tiny) -> Trainer:
    text = HEAD + NATURAL + LINF + l2 + MIX.replace("curve = 0.6", SHARES)
    value = recipe(text)
    run = Run.open_or_create(folder, value, resume=False)
    return Trainer(value, run, model, blobs(48), WORLD)


@pytest.mark.parametrize("name", OTHERS)
def test_learners_share_equal_augmentations_without_changing_their_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before, after, views = OTHERS[name]
    training = trio(L2.replace(before, after), tmp_path / "run")
    applied, apply, met = list[Batch](), CropFlip.apply, dict[str, Batch]()
    prepare = Learner.prepare_batch

    def counted(self: CropFlip, batch: Batch, draws: Rng) -> Batch:
        applied.append(batch)
        return apply(self, batch, draws)

    def noted(self: Learner, batch: Batch, t: int, seen: AugmentCache | None = None) -> Batch:
        met[self.task.name] = prepare(self, batch, t, seen)
        return met[self.task.name]

    with monkeypatch.context() as patch:
        patch.setattr(CropFlip, "apply", counted)
        patch.setattr(Learner, "prepare_batch", noted)
        training.fit(until=1)
    assert len(applied) == views
    for learner in training.learners:
        alone = learner.prepare_batch(training.batches.at(1, 1), 1)
        assert torch.equal(met[learner.task.name].x, alone.x)
        assert met[learner.task.name].label_smoothing == alone.label_smoothing == learner.task.label_smoothing
    assert torch.equal(met["natural"].x, met["l2"].x) == (views == 1)


def test_a_network_that_writes_to_its_input_does_not_change_the_images_of_others(tmp_path: Path):
    training = trio(L2, tmp_path / "run", in_place)
    training.fit(until=1)
    for learner in training.learners:
        value = recipe(HEAD + {"natural": NATURAL, "linf": LINF, "l2": L2}[learner.task.name])
        run = Run.open_or_create(tmp_path / learner.task.name, value, resume=False)
        alone = Trainer(value, run, in_place, blobs(48), WORLD)
        alone.fit(until=1)
        for name, tensor in alone.learners[0].params.items():
            assert torch.equal(tensor, learner.params[name]), (learner.task.name, name)


def test_the_mix_state_uses_the_weights_of_each_update(tmp_path: Path):
    training = trio(L2, tmp_path / "run")
    mixer, name = training.mixer, training.learners[0].task.name
    share, decay = mixer.mix.shares_at(1, mixer.clock, mixer.names)[name], 0.8
    for number in (1.0, 2.0):
        shown = {key: torch.full_like(tensor, number) for key, tensor in mixer.states[name].items()}
        expected = {key: tensor.clone() for key, tensor in mixer.states[name].items()}
        EmaUpdate(expected, shown)(decay, share)
        mixer.update(name, shown, 1)
        assert all(torch.equal(mixer.states[name][key], tensor) for key, tensor in expected.items())
