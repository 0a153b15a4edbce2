from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from allrounder.attacks import ATTACKS, Attack, Pgd
from allrounder.attacks.base import AttackResult
from allrounder.config.decode import apply_override, decode
from allrounder.config.fields import frozen_config
from allrounder.config.schedules import Constant
from allrounder.config.time import Time
from allrounder.errors import RecipeError
from allrounder.nn.mixing import MIXES, Uniform
from allrounder.objectives import Adversarial, Natural
from allrounder.optim.optimizers import Adam, Sgd
from allrounder.recipe.mix import Exchange, Mix, Shares
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.recipe.task import Task
from allrounder.threats.norms import L2, Norm
from allrounder.threats.threat import Threat
from allrounder.training.train import train
from tests.support.networks import blobs, tiny

TWO = """
epochs = 10
data  = { kind = "embedded" }
model = { kind = "small-cnn" }
probes = ["pgd-20@Linf:8/255"]

[[task]]
name      = "linf"
objective = { kind = "adversarial", threat = "Linf:8/255", attack = { kind = "pgd", steps = 10 } }
optimizer = { kind = "sgd", momentum = 0.9 }
lr        = { kind = "linear", at = [0, "100%"], to = [0.1, 0.01] }

[[task]]
name      = "natural"
objective = { kind = "natural" }
lr        = 0.1

[mix]
shares   = { lead = "linf", curve = 0.5 }
exchange = { start = "50%", every = 1 }
"""


def edited(*sets: str, drop: str = "", text: str = TWO) -> Recipe:
    raw = tomllib.loads(text)
    *path, last = drop.split(".")
    place: Any = raw
    for key in path:
        place = place[int(key) if key.isdigit() else key]
    place.pop(last, None)
    for change in sets:
        apply_override(raw, change)
    return decode(Recipe, raw, "two.toml")


def complaints(*sets: str, drop: str = "") -> list[str]:
    with pytest.raises(RecipeError) as caught:
        edited(*sets, drop=drop)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_the_recipe_without_mistakes_loads():
    assert edited().names == ("linf", "natural")


PGD = "task.linf.objective.attack"
KINDS_OF_CURVES = "expected a table with a kind (constant, linear, step, cyclic, cosine), got"


@pytest.mark.parametrize(
    ("path", "written", "message"),
    [
        # keys
        (f"{PGD}.stpes", "20", 'unknown key (Pgd has: steps, step, loss, start, eot); did you mean "steps"?'),
        (
            "task.linf.optimizer.momentun",
            "0",
            "unknown key (Sgd has: momentum, weight_decay, nesterov, decay_on); did",
        ),
        ("task.natural.objective.threat", "L2:1", "unknown key (Natural has: no keys)"),
        ("task.linf.lr.form", "[1]", "unknown key (Linear has: at, to)"),
        ("mix.exchange.evry", "1", "unknown key (Exchange has: start, every, when, momentum, averages, "),
        (
            "mix.shares.rset",
            "{}",
            'unknown key (Shares has: lead, curve, rest, curves); did you mean "rest"?',
        ),
        ("validation.imags", "1", "unknown key (Validation has: on, images, "),
        ("tasks", "[]", "unknown key (Recipe has: data, model, epochs, task, mix, "),
        ("extends", "_base.toml", "unknown key (Recipe has: "),
        # types
        ("epochs", "ten", "expected a whole number, got 'ten'"),
        ("epochs", "true", "expected a whole number, got True"),
        ("epochs", "10.0", "expected a whole number, got 10.0"),
        ("task.natural.lr", '"0.1"', f"{KINDS_OF_CURVES} '0.1'"),
        ("task.natural.lr", "true", f"{KINDS_OF_CURVES} True"),
        ("task.linf.optimizer.weight_decay", "x", "expected a number, got 'x'"),
        ("task.linf.optimizer.nesterov", "1", "expected true or false, got 1"),
        ("task.linf.augment_stream", "3", "expected a text, got 3"),
        ("name", "3", "expected a text, got 3"),
        ("data", "embeded", "expected a table with a kind (embedded, "),
        ("mix", "3", "expected a table, got 3"),
        ("task", "{}", "expected a list, got a table"),
        ("probes", "pgd-20@Linf:8/255", "expected a list, got 'pgd-20@Linf:8/255'"),
        # kinds
        (PGD, "{kind='pdg'}", f'has unknown kind "pdg" (known: {", ".join(ATTACKS)}); did you mean "pgd"?'),
        (
            "task.natural.objective",
            "{kind='ntural'}",
            'has unknown kind "ntural" (known: natural, adversarial,',
        ),
        ("model", "{width=3}", "has no kind (known: small-cnn, "),
        # budgets and attacks
        ("task.linf.objective.threat", "Linf:8/0", "threat 'Linf:8/0': '8/0' divides by zero"),
        ("task.linf.objective.threat", "Linf:-1/255", "threat 'Linf:-1/255': the budget is negative"),
        ("task.linf.objective.threat", "8/255", "threat '8/255': expected one text NORM:BUDGET"),
        ("task.linf.objective.threat", "Lifn:8/255", "threat 'Lifn:8/255': unknown norm 'Lifn'"),
        (f"{PGD}.step", "7/0", "'7/0' divides by zero"),
        (f"{PGD}.step", "0", "expected greater than 0, got 0"),
        (f"{PGD}.steps", "0", "expected greater than or equal to 1, got 0"),
        (PGD, "{kind='pgd', loss='kl', start='zero'}", "the loss kl is flat at the image itself"),
        # shares and mixing
        ("mix.shares.rest", "{natural=0.7}", "expected shares that sum to one, got 0.7"),
        ("mix.shares.rest.natural", "1.7", "expected less than or equal to 1, got 1.7"),
        ("mix.shares.rest", "{linf=1.0}", '"linf" is the lead; its share is the curve'),
        ("mix.shares.rest", "{nat=1.0}", "expected a share for each of ['natural'], got ['nat']"),
        ("mix.shares.lead", "natrual", 'no learner is called "natrual" (there are: linf, natural); did you'),
        ("mix.shares.curve", "1.5", "expected shares in [0, 1], got 1.5"),
        (
            "mix.shares.curve",
            "{kind='linear', at=[0, 1], to=[-0.5, 1]}",
            "expected shares in [0, 1], got -0.5 to 1",
        ),
        (
            "mix.rule",
            "{kind='unifrom'}",
            f'has unknown kind "unifrom" (known: {", ".join(MIXES)}); did you mean',
        ),
        ("mix.decay", "1.01", "expected a decay in [0, 1), got 1.01"),
        ("task.linf.average", "-0.1", "expected a decay in [0, 1), or false, got -0.1"),
        ("mix.exchange.start", "-1", "expected a time of at least 0 and at most the whole run, got -1"),
        ("mix.exchange.every", "101%", "expected a time of at least 0 and at most the whole run, got '101%'"),
        ("mix.exchange.strength", "0", "expected greater than 0, got 0"),
        ("mix.exchange.strength", "1.5", "expected less than or equal to 1, got 1.5"),
        ("mix.exchange.when", "sometimes", "expected 'epoch-end' or 'every-step', got 'sometimes'"),
        # optimisers and rates
        ("task.linf.optimizer.momentum", "2", "expected less than or equal to 1, got 2"),
        (
            "task.linf.lr",
            "{kind='linear', at=[2, 1], to=[1, 2]}",
            "expected times in ascending order, got 2 before 1",
        ),
        (
            "task.linf.lr",
            "{kind='step', at=['50%', '40%'], to=[1, 2]}",
            "expected times in ascending order, got 50%",
        ),
        (
            "task.linf.lr",
            "{kind='linear', at=['50%', 4], to=[1, 2]}",
            "expected times in ascending order, got 50% before 4, of 10 epochs",
        ),
        (
            "mix.shares.curve",
            "{kind='step', at=[6, '50%'], to=[1, 1]}",
            "expected times in ascending order, got 6 before 50%, of 10 epochs",
        ),
        (
            "task.linf.lr",
            "{kind='linear', at=[1], to=[1, 2]}",
            "expected one value for every time, got 1 times and 2",
        ),
        ("task.natural.lr", "-0.1", "expected rates of at least 0, got -0.1"),
        ("task.natural.label_smoothing", "1", "expected less than 1, got 1"),
        # the rest
        ("epochs", "0", "expected greater than or equal to 1, got 0"),
        ("batch_size", "1", "expected greater than or equal to 2, got 1"),
        ("seed", "-1", "expected greater than or equal to 0, got -1"),
        ("task", "[]", "expected at least one, got none"),
        ("validation.on", "train", "expected 'validation' or 'test', got 'train'"),
    ],
)
def test_a_mistake_is_refused_at_its_path(path: str, written: str, message: str):
    assert [line for line in complaints(f"{path}={written}") if line.startswith(f"{path}: {message}")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task.linf.name=natural", 'task: two learners are called "natural"; names must differ'),
        (
            "task.linf.name=best",
            'task.best.name: "best" is reserved; a learner may not be called global, best, last, live',
        ),
        ("task.linf.name=global", 'task.global.name: "global" is reserved'),
        ("task.linf.name=last", 'task.last.name: "last" is reserved'),
        ("task.linf.name=a/b", "task.a/b.name: expected a text of the form"),
        (
            "task.linf.optimizer={kind='sgd', momentum=0, nesterov=true}",
            "task.linf.optimizer.nesterov: needs",
        ),
        (
            "task.linf.optimizer={kind='adam', betas=[0.9, 1.0]}",
            "task.linf.optimizer.betas.1: expected less than 1",
        ),
        ("task.natural.lr=nan", "task.natural.lr.value: expected a finite number, got nan"),
        ("init={kind='soup', runs=[]}", "init.runs: expected at least one, got none"),
        ("mix.shares.curves={linf=1}", "mix.shares.lead: curves give the share of every learner; remove one"),
        (
            "mix.shares={curves={linf=1, natrual=1}}",
            'mix.shares.curves: no learner is called "natrual" (there are: linf, natural); did you mean',
        ),
        (
            "mix.shares={curves={linf=1}}",
            "mix.shares.curves: expected a curve for each of ['linf', 'natural'], got none for ['natural']",
        ),
        (
            "mix.shares={curves={linf=1, natural=2}}",
            "mix.shares.curves.natural: expected shares in [0, 1], got 2",
        ),
        (
            "mix.shares={curves={linf=0, natural=0}}",
            "mix.shares.curves: all are 0 in epoch 1; at every time, expected one above 0",
        ),
        (
            "mix.buffers=recalibrated",
            "mix.buffers: expected 'average', 'recalibrate', 'recalibrate-adversarial'",
        ),
        ("probes=['pgd-20']", "probes.0: expected an attack and a threat, such as"),
        ("probes=['pgd-20@Linf:8/255', 'pdg@Linf:1']", "probes.1: unknown attack 'pdg'"),
        ("validation.threats=['L3:1']", "validation.threats.0: threat 'L3:1': unknown norm 'L3'"),
    ],
)
def test_a_mistake_inside_a_table_is_refused_at_its_path(text: str, message: str):
    assert [line for line in complaints(text) if line.startswith(message)]


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("epochs", "epochs: missing; it is required"),
        ("data", "data: missing; it is required"),
        ("task.0.lr", "task.linf.lr: missing; it is required"),
        ("task.0.name", "task.0.name: missing; it is required"),
        ("task.0.objective.threat", "task.linf.objective.threat: missing; it is required"),
        ("mix.exchange.every", "mix.exchange.every: missing; it is required"),
        ("mix", "mix: missing; it must define how ['linf', 'natural'] are mixed"),
        ("mix.shares", "mix.shares: missing; it must give the share of each of ['linf', 'natural']"),
    ],
)
def test_a_missing_field_is_named(drop: str, message: str):
    assert complaints(drop=drop) == [message]


def test_three_learners_need_shares_of_the_rest():
    tasks = ", ".join(f'{{ name = "{name}", objective = {{ kind = "natural" }}, lr = 1 }}' for name in "abc")
    assert complaints(f"task=[{tasks}]", "mix.shares={ lead = 'a', curve = 1 }") == [
        "mix.shares.rest: missing; give each of ['b', 'c'] its part of what the lead leaves"
    ]


def test_a_mix_without_shares_and_decay_must_have_none():
    assert complaints("mix.rule={ kind = 'uniform' }", "mix.decay=0.9") == [
        'mix.decay: the rule "uniform" keeps no moving average; remove the decay',
        'mix.shares: the rule "uniform" does not read shares; remove them',
    ]
    mix = edited("mix={ rule = { kind = 'uniform' } }").effective_mix
    assert mix.rule == Uniform() and mix.shares is None


def test_a_single_learner_needs_no_exchange_and_no_shares():
    alone = 'task=[{ name = "linf", objective = { kind = "natural" }, lr = 1 }]'
    assert complaints(alone) == [
        "mix.exchange: an exchange needs at least two learners; there is one",
        "mix.shares.curve: expected 1, or no shares at all: there is no other learner to take the rest",
    ]
    assert edited(alone, "mix={ decay = 0.9 }").effective_mix.decay == Constant(value=0.9)
    assert edited(alone, drop="mix").effective_mix == Mix.solo()


def test_an_attack_that_does_not_know_the_norm_is_refused(monkeypatch: pytest.MonkeyPatch):
    @final
    @frozen_config
    class Round(Attack):
        """Works in L2 alone."""

        norms: ClassVar[frozenset[type[Norm]]] = frozenset({L2})

        def run(self, model: Any, x: Any, y: Any, threat: Threat, rng: Any) -> AttackResult:
            raise AssertionError

    monkeypatch.setitem(ATTACKS, "round", Round)
    message = "Round() works in L2, got the threat Linf:8/255; change one of them"
    attack = "{ kind = 'round' }"
    for change in (
        f"task.linf.objective.attack={attack}",
        f"task.linf.objective.attack={{ kind = 'restarts', attack = {attack} }}",
        f"validation={{ attack = {attack}, threats = ['Linf:8/255'] }}",
    ):
        (line,) = complaints(change)
        place = "validation" if change.startswith("validation") else "task.linf.objective"
        assert line.startswith(f"{place}: ") and line.endswith(message)
    assert edited(f"task.linf.objective.attack={attack}", "task.linf.objective.threat=L2:1")


def test_several_mistakes_are_reported_together_with_their_paths():
    lines = complaints(
        "task.linf.objective.attack.stpes=3",
        "task.natural.lr=-1",
        "task.natural.objective.kind=ntural",
        "mix.exchange.start=never",
        "batch_size=1",
        "probes=['x']",
        "epoch=3",
    )
    assert [line.split(": ")[0] for line in lines] == [
        "task.linf.objective.attack.stpes",
        "task.natural.objective",
        "task.natural.lr",
        "mix.exchange.start",
        "batch_size",
        "probes.0",
        "epoch",
    ]


def test_several_mistakes_between_fields_are_reported_together():
    curve = "task.natural.lr={kind='linear', at=['90%', 1], to=[1, 1]}"
    lines = complaints(curve, "task.linf.name=natural", "mix.shares.lead=l2")
    assert [line.split(": ")[0] for line in lines] == ["task", "mix.shares.lead", "task.natural.lr"]


def test_more_validation_images_than_there_are_stop_the_training(tmp_path: Path):
    recipe = edited("validation.images=60", "epochs=1")
    message = r"validation.images: .*got 60 of 60 training images, expected 1 to 59"
    with pytest.raises(RecipeError, match=message):
        train(recipe, tmp_path / "run", model=tiny, data=blobs(60))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Pgd(steps=0), "steps"),
        (lambda: Pgd(steps=True), "steps"),
        (lambda: Pgd(stpes=3), "stpes"),  # pyright: ignore[reportCallIssue]
        (lambda: Sgd(momentum=2.0), "momentum"),
        (lambda: Sgd(momentum=0.0, nesterov=True), "nesterov"),
        (lambda: Adam(betas=(0.9, 2.0)), "betas"),
        (lambda: Shares(lead="a", curve=Constant(value=2.0)), "curve"),
        (lambda: Shares(lead="a", curve=Constant(value=1.0), rest={"b": 0.2}), "rest"),
        (lambda: Mix(decay=Constant(value=2.0)), "decay"),
        (lambda: Task(name="best", objective=Natural(), lr=Constant(value=1.0)), "name"),
        (lambda: Task(name="a", objective=Natural(), lr=Constant(value=-1.0)), "lr"),
        (lambda: Task(name="a", objective=Natural(), lr=0.1, average=3), "average"),  # pyright: ignore[reportArgumentType]
        (lambda: Adversarial(threat="Linf:8/0"), "threat"),  # pyright: ignore[reportArgumentType]
        (lambda: Adversarial(), "threat"),  # pyright: ignore[reportCallIssue]
        (lambda: Exchange(start="soon", every=Time.parse(1)), "start"),  # pyright: ignore[reportArgumentType]
        (lambda: replace(edited(), epochs=0), "epochs"),
        (lambda: replace(edited(), mix=None), "mix"),
        (lambda: replace(edited(), tasks=()), "tasks"),
    ],
)
def test_constructors_name_the_invalid_field(make: Callable[[], object], field: str):
    with pytest.raises(ValidationError) as caught:
        make()
    assert field in [str(part) for error in caught.value.errors() for part in error["loc"]]
    assert field in str(caught.value)


def test_python_accepts_the_texts_and_numbers_of_recipes():
    made = Task(
        name="a",
        objective=Adversarial(threat="L2:1/2"),  # pyright: ignore[reportArgumentType]
        lr=0.1,  # pyright: ignore[reportArgumentType]
        average=0.9,  # pyright: ignore[reportArgumentType]
    )
    assert made.lr == Constant(value=0.1)
    assert made.average == Constant(value=0.9)
    assert isinstance(made.objective, Adversarial)
    assert made.objective.threat == Threat.parse("L2:1/2")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"x\.toml: cannot be read: .*utf-8"):
        Recipe.load(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("embedded/generalst-t", 'no shipped recipe of that name; did you mean "embedded/generalist-t"?'),
        ("no/such.toml", "no/such.toml: no such file, and no shipped recipe of that name"),
        ("/", "/: a folder, a pipe or a device, expected a file"),
        ("embedded/_base", "embedded/_base: no such file"),
    ],
)
def test_a_recipe_that_does_not_exist_is_named(name: str, message: str):
    with pytest.raises(RecipeError, match=re.escape(message)):
        Recipe.load(name)


def test_invalid_toml_is_a_recipe_error():
    with pytest.raises(RecipeError, match="here: not TOML"):
        Recipe.loads("epochs =", "here")


def test_overrides_are_applied_in_order_and_as_strictly():
    made = Recipe.load("embedded/nt", ["epochs=3", "task.natural.lr=0.5", "epochs=4", "name=mine"])
    assert (made.epochs, made.tasks[0].lr, made.name) == (4, Constant(value=0.5), "mine")
    with pytest.raises(RecipeError, match=r'natural\.optimizer\.momentun: unknown key .*"momentum"'):
        Recipe.load("embedded/nt", ["task.natural.optimizer.momentun=0"])
    with pytest.raises(RecipeError, match="embedded/nt cannot be run:\n  epochs: expected a whole number"):
        Recipe.load("embedded/nt", ["epochs=2.5"])


def test_an_overridden_budget_keeps_its_spelling():
    made = Recipe.load("embedded/at-linf", ["task.linf.objective.threat=linf:8/255"])
    assert 'threat = "Linf:8/255"' in made.dumps()


@pytest.mark.slow
def test_shipped_recipes_survive_being_written():
    for name in shipped_recipes():
        recipe = Recipe.load(name)
        again = Recipe.loads(recipe.dumps())
        assert again == recipe, name
        assert again.dumps() == recipe.dumps(), name
        assert again.fingerprint() == recipe.fingerprint(), name
        assert recipe.name == name


def kinds(**choices: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables of any of some kinds, each with its fields."""
    return st.one_of(
        *(
            st.fixed_dictionaries({"kind": st.just(kind.replace("_", "-"))}, optional=fields)
            for kind, fields in choices.items()
        )
    )


UNIT, POSITIVE = st.floats(0, 1), st.floats(1e-9, 1e3)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SHARES_OF_THE_RUN = st.fractions(0, 1, max_denominator=1000).map(lambda f: f"{100 * f}%")
TIMES = st.one_of(st.integers(0, 200), st.fractions(0, 200).map(str), st.floats(0, 200), SHARES_OF_THE_RUN)
THREATS = st.builds(
    lambda norm, budget: f"{norm}:{budget}",
    st.sampled_from(["Linf", "L2", "l1", "L1(0.1)"]),
    st.one_of(st.fractions(0, "1/2"), st.floats(0, 0.5)),
)
STEPS = {"steps": st.integers(1, 100), "step": st.one_of(st.floats(1e-9, 2), st.just("7/31"))}
SIMPLE_ATTACKS = kinds(
    pgd={
        **STEPS,
        "loss": st.sampled_from(["ce", "margin", "cw", "kl"]),
        "start": st.sampled_from(["random", "boundary", "gaussian"]),
    },
    mim={**STEPS, "decay": UNIT},
    cw={**STEPS, "kappa": POSITIVE},
)
EVERY_ATTACK = st.one_of(
    SIMPLE_ATTACKS,
    st.builds(lambda a, n: {"kind": "restarts", "attack": a, "count": n}, SIMPLE_ATTACKS, st.integers(1, 9)),
)
BELOW_ONE = UNIT.filter(lambda share: share < 1)
SPANS = TIMES.filter(lambda time: Time.parse(time).amount > 0)
DECAYS = st.one_of(
    BELOW_ONE,
    kinds(warmup={"limit": BELOW_ONE}),
    SPANS.map(lambda time: {"kind": "time-constant", "over": time}),
)


def curves(values: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    at = st.lists(st.fractions(0, 1, max_denominator=1000), min_size=1, max_size=4).map(sorted)
    knots = st.tuples(st.sampled_from(["linear", "step"]), at, st.lists(values, min_size=4, max_size=4))
    return st.one_of(
        values,
        knots.map(
            lambda k: {"kind": k[0], "at": [f"{100 * time}%" for time in k[1]], "to": k[2][: len(k[1])]}
        ),
        st.builds(lambda peak, top: {"kind": "cyclic", "peak": peak, "top": top}, values, TIMES),
        st.builds(lambda start, warm: {"kind": "cosine", "start": start, "warmup": warm}, values, TIMES),
    )


OBJECTIVES = st.one_of(
    st.just({"kind": "natural"}),
    st.builds(
        lambda threat, attack, layers: {
            "kind": "adversarial",
            "threat": threat,
            "attack": attack,
            "norm_layers": layers,
        },
        THREATS,
        EVERY_ATTACK,
        st.sampled_from(["eval", "train", "train_frozen"]),
    ),
)
AUGMENTS = kinds(
    crop_flip={
        "pad": st.integers(0, 8),
        "flip": st.booleans(),
        "padding": st.sampled_from(["zero", "reflect"]),
    },
    resized_crop={"scale": st.lists(st.floats(0.01, 1), min_size=2, max_size=2).map(sorted)},
    cutout={"size": st.integers(0, 40)},
    color_jitter={"contrast": UNIT, "hue": st.floats(0, 0.5)},
    mixup={"alpha": POSITIVE, "chance": UNIT},
    none={},
)
TASKS = st.fixed_dictionaries(
    {"objective": OBJECTIVES, "lr": curves(POSITIVE)},
    optional={
        "optimizer": kinds(
            sgd={"momentum": UNIT, "weight_decay": POSITIVE},
            adam={"betas": st.lists(st.floats(0, 0.99), min_size=2, max_size=2), "eps": POSITIVE},
            adamw={"weight_decay": POSITIVE},
        ),
        "augment": AUGMENTS
        | st.lists(AUGMENTS.filter(lambda one: one["kind"] not in ("mixup", "cutmix")), min_size=1).map(
            lambda steps: {"kind": "chain", "steps": [*steps, {"kind": "cutmix"}]}
        ),
        "augment_stream": TEXTS,
        "label_smoothing": st.floats(0, 0.9),
        "average": st.one_of(st.just(False), DECAYS),
    },
)
KEEP = st.sampled_from(["keep", "reset"])
EXCHANGES = st.fixed_dictionaries(
    {"start": TIMES, "every": SPANS},
    optional={
        "when": st.sampled_from(["epoch-end", "every-step"]),
        "momentum": KEEP,
        "averages": KEEP,
        "strength": st.floats(0.01, 1),
    },
)


@st.composite
def mixes(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    mix: dict[str, Any] = {
        "decay": draw(DECAYS),
        "buffers": draw(st.sampled_from(["average", "recalibrate"])),
    }
    if len(names) == 1:
        return mix
    lead = draw(st.sampled_from(names))
    others = [name for name in names if name != lead]
    shares: dict[str, Any] = {"lead": lead, "curve": draw(curves(UNIT))}
    if len(others) > 1 or draw(st.booleans()):
        parts = [draw(st.floats(0.01, 1)) for _ in others]
        shares["rest"] = {name: part / sum(parts) for name, part in zip(others, parts, strict=True)}
    if draw(st.booleans()):  # the other form; one curve is never 0
        shares = {"curves": {name: draw(curves(UNIT)) for name in others} | {lead: draw(st.floats(0.01, 1))}}
    exchange = draw(st.none() | EXCHANGES)
    return {**mix, "shares": shares} | ({} if exchange is None else {"exchange": exchange})


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Whole recipes as their files would hold them."""
    some = st.sampled_from(["a", "b-1", "L_inf", "0", "nat"])
    names = draw(st.lists(some, min_size=1, max_size=3, unique=True))
    required = {
        "data": st.just({"kind": "embedded"}),
        "model": kinds(small_cnn={"width": st.integers(1, 64)}, resnet18={}),
        "epochs": st.integers(1, 300),
        "mix": mixes(names),
    }
    validation: dict[str, st.SearchStrategy[Any]] = {
        "on": st.sampled_from(["validation", "test"]),
        "images": st.integers(0, 999) | st.sampled_from(["10%", "0.5%", "100/3%"]),
        "every": SPANS,
        "attack": EVERY_ATTACK,
        "threats": st.lists(THREATS, max_size=3),
    }
    optional: dict[str, st.SearchStrategy[Any]] = {
        "batch_size": st.integers(2, 999),
        "extra": st.fixed_dictionaries(
            {
                "share": st.just(0.5),
                "data": kinds(embedded={}, npz={}).map(
                    lambda t: {"path": "a"} | t if t["kind"] == "npz" else t
                ),
            }
        ),
        "seed": st.integers(0, 2**40),
        "pace": st.sampled_from(["epoch", "step"]),
        "init": st.sampled_from(
            [{"kind": "run", "run": "runs/a b"}, {"kind": "soup", "runs": ["x", "y"], "which": "best"}]
        ),
        "validation": st.fixed_dictionaries({}, optional=validation),
        "checkpoint": SPANS,
        "probes": st.lists(THREATS.map(lambda threat: f"pgd-20@{threat}"), max_size=2),
        "about": TEXTS,
        "name": TEXTS,
    }
    table = draw(st.fixed_dictionaries(required, optional=optional))
    return {**table, "task": [{"name": name, **draw(TASKS)} for name in names]}


@pytest.mark.slow
@given(tables())
@settings(max_examples=60)
def test_any_recipe_survives_being_written(table: dict[str, Any]):
    recipe = Recipe.loads(tomli_w.dumps(table))
    again = Recipe.loads(recipe.dumps())
    assert again == recipe
    assert again.fingerprint() == recipe.fingerprint()
    renamed = replace(recipe, name="another", about="name")
    assert renamed.fingerprint() == recipe.fingerprint()


@pytest.mark.parametrize(
    "text",
    [
        "epochs=11",
        "batch_size=64",
        "seed=1",
        "pace=step",
        "model.width=8",
        "checkpoint=2",
        "probes=[]",
        "validation.images=499",
        "validation.on=test",
        "init={kind='run', run='x'}",
        "task.linf.objective.threat=Linf:7/255",
        "task.linf.objective.attack.steps=9",
        "task.linf.objective.norm_layers=train",
        "task.linf.optimizer.momentum=0.91",
        "task.linf.lr.to=[0.1, 0.02]",
        "task.linf.lr.at=[0, '99%']",
        "task.natural.average=0.9",
        "task.natural.augment_stream=own",
        "task.natural.augment={kind='none'}",
        "task.natural.augment={kind='crop-flip', padding='reflect'}",
        "extra={share=0.5, data={kind='embedded'}}",
        "mix.decay=0.998",
        "mix.buffers=recalibrate",
        "mix.shares.curve=0.4",
        "mix.exchange.every=2",
        "mix.exchange.when=every-step",
    ],
)
def test_any_other_change_changes_the_fingerprint(text: str):
    assert edited(text).fingerprint() != edited().fingerprint()


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("cifar10", 'folder = "elsewhere"'),
        ("mnist", 'folder = "elsewhere"'),
        ("svhn", 'folder = "elsewhere"'),
        ("tiny-imagenet", 'folder = "elsewhere", workers = 3'),
        ("imagenet", 'folder = "elsewhere", workers = 3'),
        ('folder", path = "x', "workers = 3"),
    ],
)
def test_fields_that_cannot_change_results_are_not_in_the_fingerprint(kind: str, field: str):
    one, two = (
        Recipe.load("embedded/at-linf", [f'data={{ kind = "{kind}"{more} }}']) for more in ("", f", {field}")
    )
    assert one != two and one.fingerprint() == two.fingerprint()
    extra = [f'extra={{ data = {{ kind = "{kind}"{more} }}, share = 0.5 }}' for more in ("", f", {field}")]
    one, two = (Recipe.load("embedded/at-linf", [text]) for text in extra)
    assert one != two and one.fingerprint() == two.fingerprint()
    assert one.fingerprint() != Recipe.load("embedded/at-linf").fingerprint()


def test_where_images_of_your_own_are_is_in_the_fingerprint():
    for kind, other in (("folder", 'size = 4, path = "x"'), ("folder", 'path = "y"'), ("npz", 'path = "x"')):
        one = Recipe.load("embedded/at-linf", ['data={ kind = "folder", path = "x" }'])
        two = Recipe.load("embedded/at-linf", [f'data={{ kind = "{kind}", {other} }}'])
        assert one.fingerprint() != two.fingerprint()


def test_the_order_of_keys_does_not_change_the_fingerprint():
    tasks = ", ".join(f'{{ name = "{name}", objective = {{ kind = "natural" }}, lr = 1 }}' for name in "abc")
    one, two = (
        edited(f"task=[{tasks}]", f"mix.shares={{ lead = 'a', curve = 1, rest = {rest} }}")
        for rest in ("{ b = 0.25, c = 0.75 }", "{ c = 0.75, b = 0.25 }")
    )
    assert one == two
    assert one.fingerprint() == two.fingerprint()
    spelled = edited("mix.exchange.start=5000/100%", "task.natural.lr={kind='constant', value=0.1}")
    assert spelled == edited()
    assert spelled.fingerprint() == edited().fingerprint()


def test_the_fingerprint_is_the_same_in_every_process():
    names = list(shipped_recipes())[::5]
    code = (
        "import json, sys; from allrounder.recipe.recipe import Recipe;"
        "print(json.dumps({name: Recipe.load(name).fingerprint() for name in sys.argv[1:]}))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    words = [sys.executable, "-c", code, *names]
    process = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == {name: Recipe.load(name).fingerprint() for name in names}
