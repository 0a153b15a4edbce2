"""Ensembles whose outputs are mixed: fitted on held-out images, attacked as one network, saved as a run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from allrounder.attacks.pgd import Pgd
from allrounder.data.base import Data, Split
from allrounder.data.datasets.embedded import Embedded
from allrounder.data.splits import hold_out
from allrounder.errors import InputError, RecipeError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.experiments.ensemble import MAX_LOGIT, FittedEnsemble, fit_ensemble, list_mixes
from allrounder.experiments.ensemble_run import dial_outputs
from allrounder.models.ensemble import Ensemble, EnsembleModel, OutputMix
from allrounder.models.small_cnn import SmallCnn
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.rng import Rng
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.support.networks import same

LINF = "Linf:0.05"
SETS = [
    "train_images=600",
    "epochs=6",
    "batch_size=32",
    "model.width=6",
    "validation.images=60",
    "validation.train_images=0",
    f'validation.threats=["{LINF}"]',
    "validation.attack.steps=3",
]
ATTACK = Pgd(steps=3, step=0.5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A natural and a robust run on the embedded images."""
    folder = tmp_path_factory.mktemp("runs")
    train("embedded/nt", folder / "natural", overrides=SETS, progress=False)
    robust = ["task.linf.objective.attack.steps=2", "task.linf.objective.threat=Linf:0.2"]
    train("embedded/at-linf", folder / "robust", overrides=[*SETS, *robust], progress=False)
    return folder / "natural", folder / "robust"


@pytest.fixture(scope="module")
def networks(runs: tuple[Path, Path]) -> tuple[nn.Module, nn.Module]:
    return load(runs[0]), load(runs[1])


@pytest.fixture(scope="module")
def held_out() -> Split:
    """Training images, most of which no network was trained on."""
    return hold_out(Embedded().load().train, 90, Rng(7))[1]


def fit(networks: tuple[nn.Module, nn.Module], split: Split, **more: Any) -> FittedEnsemble:
    return fit_ensemble(*networks, split, threats=[LINF], attack=ATTACK, **more)


@pytest.mark.slow
def test_the_fit_gains_natural_accuracy_within_the_tolerance(
    networks: tuple[nn.Module, nn.Module], held_out: Split
):
    fitted = fit(networks, held_out, tolerance=0.1)
    assert fitted.measured.natural > fitted.robust.natural, "else the ensemble is useless here"
    assert fitted.measured.worst >= fitted.robust.worst - 0.1 - 1e-9
    assert fitted.attacked >= 1 and set(fitted.measured.shares) == {"natural", "robust"}
    strict = fit(networks, held_out, tolerance=0.0)
    assert strict.measured.natural >= strict.robust.natural
    assert strict.measured.worst >= strict.robust.worst - 1e-9
    again = fit(networks, held_out, tolerance=0.1)
    assert (again.ensemble.mix, again.measured) == (fitted.ensemble.mix, fitted.measured), "deterministic"


def accuracy(model: nn.Module, split: Split, probe: Probe) -> float:
    outcome: Outcome = evaluate(model, split, probes=[probe], options=EvalOptions(check="skip"))
    return outcome.accuracy(str(probe))


def test_attacks_on_the_whole_are_at_least_as_strong_as_those_on_its_parts(
    networks: tuple[nn.Module, nn.Module], held_out: Split
):
    ensemble = fit(networks, held_out, tolerance=0.1).ensemble
    probe = Probe("pgd", Pgd(steps=10, step=0.25), replace_threat(LINF))
    whole = accuracy(ensemble, held_out, probe)
    for name, part in zip(("natural", "robust"), networks, strict=True):
        assert whole <= accuracy(ensemble, held_out, probe.transfer_from(part, name)), name
    assert whole < evaluate(ensemble, held_out, options=EvalOptions(check="skip")).accuracy()


def replace_threat(text: str) -> Any:
    return Probe.parse(f"pgd-1@{text}").threat


def test_the_grid_never_saturates_the_softmax():
    for classes in (3, 10, 100):
        mixes = list_mixes(classes)
        worst = torch.full((1, classes), -1.0)
        worst[0, 0] = classes - 1.0  # the largest normalised logit there is
        assert len(mixes) > 100 and all(0 < mix.alpha < 1 for mix in mixes)
        assert max(float(mix.transform(worst).max()) for mix in mixes) <= MAX_LOGIT * 1.001
        assert math.isclose(
            float(OutputMix(alpha=0.5).transform(worst).max()), math.sqrt(classes - 1), rel_tol=1e-3
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tolerance": -0.1}, "tolerance -0.1"),
        ({"rounds": 0}, "0 rounds"),
        ({"threats": []}, "0 threats"),
    ],
)
def test_wrong_settings_are_explained(held_out: Split, change: dict[str, Any], message: str):
    network = SmallCnn(width=2).build(10, (1, 28, 28))
    settings: dict[str, Any] = {"threats": [LINF], **change}
    with pytest.raises(InputError, match=message):
        fit_ensemble(network, network, held_out, **settings)


def test_test_images_and_other_classes_are_refused(held_out: Split):
    network, other = (SmallCnn(width=2).build(classes, (1, 28, 28)) for classes in (10, 11))
    data = Embedded().load()
    assert isinstance(data, Data)
    with pytest.raises(InputError, match="expected held-out images; its test images must not be used"):
        fit_ensemble(network, network, data, threats=[LINF])
    with pytest.raises(InputError, match="got networks with 10 and 11 classes"):
        fit_ensemble(network, other, held_out, threats=[LINF])


def test_a_saved_ensemble_is_a_run_that_loads(runs: tuple[Path, Path], tmp_path: Path):
    fitted = dial_outputs(*runs, tmp_path / "ensemble", tolerance=0.1)
    run = Run(tmp_path / "ensemble")
    assert run.finished and isinstance(run.recipe.model, EnsembleModel)
    assert (
        run.recipe.model.mix == fitted.ensemble.mix and "embedded/nt and embedded/at-linf" in run.recipe.about
    )
    network = load(run, "best")
    assert isinstance(network, Ensemble)
    assert same(network.natural.state_dict(), load(runs[0]).state_dict())
    assert same(network.robust.state_dict(), load(runs[1]).state_dict())
    facts = run.weights()[1]
    assert facts["networks"] == 2 and facts["mixture"]["alpha"] == fitted.ensemble.mix.alpha
    (event,) = run.metrics()
    assert event["natural"] == fitted.measured.natural and event["images"] == 60
    with pytest.raises(RecipeError, match="no parameter that can be trained"):
        train(replace(run.recipe, epochs=1), tmp_path / "again", progress=False)
    assert Recipe.loads(run.recipe.dumps()) == run.recipe
