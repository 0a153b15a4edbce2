"""What the papers varied, written down once more, and that the shipped studies vary the same."""

from __future__ import annotations

from functools import cache

import pytest

from allrounder.config.time import Clock
from allrounder.experiments.study import Study
from allrounder.optim.optimizers import Adam, Sgd
from allrounder.recipe.mix import Exchange
from allrounder.recipe.recipe import Recipe

CLOCK = Clock(120, 6, "step")
CURVES = {
    # CVPR 4.2.1, Figure 3
    "1, 1, 1, 0": (1, 1, 1, 0),
    "1, 1, 0.8, 0.2": (1, 1, 0.8, 0.2),
    "1, 1, 1, 0.1": (1, 1, 1, 0.1),
    "1, 1, 1, 0.2": (1, 1, 1, 0.2),
    "1, 1, 1, 0.3": (1, 1, 1, 0.3),
    "1, 1, 1, 0.4": (1, 1, 1, 0.4),
    "1, 1, 1, 0.5": (1, 1, 1, 0.5),
    "static 0.5": (0.5, 0.5, 0.5, 0.5),
    # Generalist++ V-A, Figures 3 and 9; only late decay is given in numbers
    "rising": (0, 1 / 3, 2 / 3, 1),
    "constant": (0.5, 0.5, 0.5, 0.5),
    "decaying": (1, 2 / 3, 1 / 3, 0),
    "early decay": (1, 0, 0, 0),
    "middle decay": (1, 1, 0, 0),
    "late decay": (1, 1, 1, 0),
}
GENERALISTS = {
    "T": ("linf", "natural", "l2"),
    "D NT+Linf": ("linf", "natural"),
    "D Linf+L2": ("linf", "l2"),
}
LEARNER = {"NT": "natural", "Linf": "linf", "L2": "l2"}


@cache
def recipes(name: str) -> dict[str, Recipe]:
    """By label, with the first seed."""
    study = Study.load(name)
    return {trial.label: trial.recipe for trial in study.trials() if trial.seed == study.seeds[0]}


def exchange(recipe: Recipe) -> Exchange:
    assert recipe.effective_mix.exchange is not None
    return recipe.effective_mix.exchange


def lead(recipe: Recipe) -> tuple[float, ...]:
    """The lead's share at epochs 0, 40, 80, 120, or as far in other runs."""
    shares = recipe.effective_mix.shares
    assert shares is not None and shares.curve is not None
    return tuple(shares.curve(epoch * 6, CLOCK) for epoch in (0, 40, 80, 120))


def averaged(recipe: Recipe) -> set[str]:
    return {task.name for task in recipe.tasks if task.average is not None}


def with_adam(recipe: Recipe) -> set[str]:
    assert all(isinstance(task.optimizer, Adam | Sgd) for task in recipe.tasks)
    return {task.name for task in recipe.tasks if isinstance(task.optimizer, Adam)}


def first_rates(recipe: Recipe) -> dict[str, float]:
    return {task.name: task.lr(1, CLOCK) for task in recipe.tasks}


def sources(name: str) -> dict[str, str]:
    """The recipe of every row, by label."""
    study = Study.load(name)
    return {point.label: point.recipe or study.base for point in study.row}


def test_share_curves_are_those_of_the_paper():
    found = recipes("cifar10/shares")
    assert list(found) == list(CURVES)[:8]
    for label, recipe in found.items():
        assert recipe.names == GENERALISTS["D NT+Linf"]
        assert lead(recipe) == pytest.approx(CURVES[label])
    assert {str(probe) for probe in found["static 0.5"].probes} == {
        "pgd-20@Linf:8/255",
        "cw@Linf:8/255",
        "aa@Linf:8/255",
    }


def test_trends_and_stages_are_those_of_the_paper_for_all_generalists():
    found = recipes("cifar10/trends")
    assert list(found) == [f"{which}, {curve}" for which in GENERALISTS for curve in list(CURVES)[8:]]
    for label, recipe in found.items():
        which, _, curve = label.partition(", ")
        assert recipe.names == GENERALISTS[which]
        assert lead(recipe) == pytest.approx(CURVES[curve])


@pytest.mark.parametrize("name", ["embedded/shares", "embedded/trends"])
def test_small_curves_are_the_papers_at_the_same_places_of_the_run(name: str):
    found = {label: recipe for label, recipe in recipes(name).items() if not label.startswith("recipe")}
    assert len(found) == {"embedded/shares": 5, "embedded/trends": 6}[name]
    for label, recipe in found.items():
        assert lead(recipe) == pytest.approx(CURVES[label])
        assert exchange(recipe).start.to_epochs(120) == 75


@pytest.mark.parametrize("name", ["cifar10/second-share", "embedded/second-share"])
def test_the_second_share_is_b_of_what_the_lead_leaves(name: str):
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9] if name.startswith("cifar10") else None
    values = values or [0.1, 0.3, 0.5, 0.7, 0.9]
    found = recipes(name)
    assert list(found) == [f"b = {b}" for b in values]
    for b, recipe in zip(values, found.values(), strict=True):
        assert recipe.names == GENERALISTS["T"]
        for epoch in (100, 120):
            shares = recipe.effective_mix.shares_at(epoch * 6, CLOCK, recipe.names)
            assert shares["natural"] == pytest.approx(b * (1 - shares["linf"]))
            assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "periods"),
    [
        ("cifar10/period", [1, 2, 5, 10, 15]),  # CVPR 4.2.2
        ("cifar10/period-plus", [1, 2, 3, 4, 5, 6, 7] * 3),  # Generalist++ V-B
        ("embedded/period", [1, 2, 5, 7, 10, 15]),  # both, as shares of the run
    ],
)
def test_periods_are_those_of_the_papers(name: str, periods: list[int]):
    found = recipes(name)
    assert [exchange(recipe).every.to_epochs(120) for recipe in found.values()] == periods
    assert [int(label.rpartition(" ")[2]) for label in found] == periods


def test_small_periods_differ_in_steps():
    steps = [exchange(r).period(Clock(r.epochs, 54, r.pace)) for r in recipes("embedded/period").values()]
    assert steps == sorted(set(steps))


def test_averages_are_on_none_each_and_all_learners():
    found = recipes("cifar10/averaging")
    for which, names in GENERALISTS.items():
        sets = [averaged(recipe) for label, recipe in found.items() if label.startswith(f"{which}, ")]
        assert sorted(map(sorted, sets)) == sorted([[], *([name] for name in names), sorted(names)])
    for label, recipe in (found | recipes("embedded/averaging")).items():
        said = label.rpartition(", ")[2]
        expected = {"none": set[str](), "all": set(recipe.names), "both": set(recipe.names)}
        assert averaged(recipe) == expected.get(said, {LEARNER.get(said.removesuffix(" only"), "")})


@pytest.mark.parametrize(("name", "rate"), [("cifar10/optimizers", 1e-4), ("embedded/optimizers", 1e-3)])
def test_every_learner_has_the_optimizer_that_the_label_says(name: str, rate: float):
    for label, recipe in recipes(name).items():
        if label.startswith("T, "):
            said = {"all SGD": set[str](), "all Adam": set(recipe.names)}.get(label[3:])
            expected = {LEARNER[label[3:].partition(" ")[0]]} if said is None else said
        else:
            words = [part.partition(" ") for part in label.replace("AT", "Linf").split(" + ")]
            assert {LEARNER[word] for word, _, _ in words} == set(recipe.names)
            expected = {LEARNER[word] for word, _, which in words if which == "(Adam)"}
        assert with_adam(recipe) == expected
        assert {first_rates(recipe)[learner] for learner in expected} <= {rate}
        plain = Recipe.load(sources(name)[label])
        for task, before in zip(recipe.tasks, plain.tasks, strict=True):
            assert isinstance(task.optimizer, Adam | Sgd) and isinstance(before.optimizer, Sgd)
            assert task.optimizer.weight_decay == before.optimizer.weight_decay
            factor = task.lr(1, CLOCK) / before.lr(1, CLOCK)
            falls = [(task.lr(6 * e, CLOCK), factor * before.lr(6 * e, CLOCK)) for e in (40, 60, 90, 120)]
            assert [now for now, _ in falls] == pytest.approx([then for _, then in falls])


@pytest.mark.parametrize("name", ["cifar10/rates", "embedded/rates"])
def test_rates_are_those_of_table_5(name: str):
    rates = [(0.1, 0.01), (0.1, 0.1), (0.1, 0.001), (0.01, 0.01), (0.01, 0.1)]
    found = recipes(name)
    assert list(found) == [f"NT {natural}, AT {linf}" for natural, linf in rates]
    for (natural, linf), recipe in zip(rates, found.values(), strict=True):
        assert first_rates(recipe) == {"linf": linf, "natural": natural}
        for task in recipe.tasks:
            assert task.lr(CLOCK.total_steps, CLOCK) == pytest.approx(first_rates(recipe)[task.name] / 100)
            if name.startswith("cifar10"):
                assert task.lr(360, CLOCK) == pytest.approx(first_rates(recipe)[task.name] / 10)


def test_what_was_chosen_is_transferred_unchanged():
    found = recipes("cifar10/transfer")
    assert len({(type(r.data), type(r.model)) for r in found.values()}) == len(found) == 8
    for recipe in found.values():
        assert recipe.names == GENERALISTS["T"]
        assert lead(recipe) == pytest.approx((1, 1, 1, 0))
        epochs = recipe.epochs
        assert (exchange(recipe).start.to_epochs(epochs), exchange(recipe).every.to_epochs(epochs)) == (75, 5)
    small = recipes("embedded/transfer")
    mixes = [recipe.mix for label, recipe in small.items() if label.endswith("NT+Linf")]
    assert mixes == [Recipe.load("embedded/generalist-d-nt-linf").mix] * 3


@pytest.mark.parametrize("folder", ["cifar10", "embedded"])
def test_our_own_ablations_vary_what_their_labels_say(folder: str):
    starts = [0, 25, 50, 75, 100, 120] if folder == "cifar10" else [0, 36, 75, 108, 120]
    assert [exchange(r).start.to_epochs(120) for r in recipes(f"{folder}/start").values()] == starts
    assert {label: exchange(r).when for label, r in recipes(f"{folder}/exchange-when").items()} == {
        "epoch-end": "epoch-end",
        "every-step": "every-step",
    }
    assert {label: r.effective_mix.buffers for label, r in recipes(f"{folder}/buffers").items()} == {
        "averaged": "average",
        "recalibrated": "recalibrate",
    }
    kept = {f"{what} {how}": how for what in ("momentum", "averages") for how in ("kept", "reset")}
    for label, recipe in recipes(f"{folder}/momentum").items():
        momentum, _, averages = label.partition(", ")
        said = {"kept": "keep", "reset": "reset"}
        assert exchange(recipe).momentum == said[kept[momentum]]
        assert exchange(recipe).averages == said[kept[averages]]
        assert averaged(recipe) == set(recipe.names)
