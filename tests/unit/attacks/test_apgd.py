from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.attacks.apgd import L1_SCHEDULE, Apgd, checkpoint_periods, plan_checkpoints
from allrounder.attacks.base import perturb
from allrounder.attacks.losses import dlr, targeted_dlr, targeted_margin
from allrounder.attacks.search.base import SUCCESS_SLACK, RoundInit, query_model
from allrounder.config.fields import OneOf
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.norms import L1
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.reference import apgd as twin

TEXTS = ("Linf:8/255", "L2:1/2", "L1:2")
THREATS = pytest.mark.parametrize("threat", [Threat.parse(t) for t in TEXTS], ids=str)
LOSSES = pytest.mark.parametrize(
    "fields",
    [
        {"surrogate": "ce"},
        {"surrogate": "dlr"},
        {"surrogate": "dlr", "targets": 2},
        {"surrogate": "ce", "targets": 2},
    ],
    ids=["ce", "dlr", "targeted-dlr", "targeted-ce"],
)


class OneByOne(nn.Module):
    """A smooth network that looks at every image alone, so that neighbours change not one bit."""

    def __init__(self, classes=5, hidden=12, pixels=27):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(hidden, pixels, generator=generator, dtype=torch.float64) / 2)
        self.last = nn.Parameter(torch.randn(classes, hidden, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([self.last @ (self.first @ image.flatten()).sin() for image in x])


def images(n=4):
    return torch.rand(n, 3, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def natural(model, x):
    with torch.no_grad():
        logits = model(x)
    return logits, logits.argmax(1)


def begin(search, model, x, threat, *, rows=None, number=0, seed=0):
    logits, y = natural(model, x)
    rng = Rng(seed).fold_in("round", number)
    if rows is not None:
        rng = rng.per_example(torch.tensor(rows))
    return search.begin(RoundInit(x, y, logits, threat, rng, number))


def follow(search, model, x, threat, **kwargs):
    """Every point asked about, and every state, the last included."""
    state = begin(search, model, x, threat, **kwargs)
    asked, states = [], [state]
    while not search.is_finished(state).all():
        answer = query_model(search, model, state, threat, True)
        asked.append(answer.x)
        state = search.tell(state, answer, threat)
        states.append(state)
    return asked, states


# The twin


def twins(search, model, x, threat, number=0):
    logits, y = natural(model, x)
    rng = Rng(0).fold_in("round", number).fold_in("start")
    noise = rng.uniform(x) if str(threat.norm) == "Linf" else rng.normal(x)
    paths = []
    for i in range(len(x)):
        target = twin.target_of(logits[i], int(y[i]), 1 + number) if search.targets else None
        name = search.loss_name(logits.shape[1])
        norm, eps, fields = str(threat.norm), threat.eps, {"schedule": search.schedule, "rho": search.rho}
        args = model, x[i].numpy(), int(y[i]), target, name, norm, eps, noise[i].numpy(), search.steps
        paths.append(twin.search(*args, **fields))
    return [torch.from_numpy(np.stack(points)) for points in zip(*paths, strict=True)]


def compare(search, threat, number=0, classes=5, n=4):
    model, x = OneByOne(classes), images(n)
    asked, _ = follow(search, model, x, threat, number=number)
    expected = twins(search, model, x, threat, number)
    assert len(asked) == len(expected)
    for ours, other in zip(asked, expected, strict=True):
        # Rounding decides between points of equal loss, which in L2 need not be equal to the last digit.
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-7)


@THREATS
@LOSSES
def test_apgd_equals_its_twin_step_by_step(threat, fields):
    steps = 12 if isinstance(threat.norm, L1) else 30
    compare(Apgd(steps=steps, **fields), threat, number=len(fields) - 1)


def test_a_long_search_in_l1_equals_its_twin_step_by_step():
    compare(Apgd(steps=50), Threat.parse("L1:1"), n=1)


@THREATS
def test_a_schedule_equals_its_twin_step_by_step(threat):
    compare(Apgd(steps=20, schedule=L1_SCHEDULE), threat, n=3)


@THREATS
def test_rho_and_the_fallback_to_the_margin_equal_their_twin(threat):
    compare(Apgd(steps=10, rho=0.4, surrogate="dlr"), threat, classes=2)
    compare(Apgd(steps=10, surrogate="dlr", targets=1), threat, classes=3)


# Checkpoints


def test_checkpoints_are_those_of_the_paper():
    assert list(checkpoint_periods(100, sparse=False)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert list(checkpoint_periods(100, sparse=False).values()) == [22, 19, 16, 13, 10, 7, 6, 6]
    assert list(checkpoint_periods(10, sparse=False)) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert list(checkpoint_periods(1, sparse=False)) == [1]
    assert list(checkpoint_periods(100, sparse=True)) == list(range(4, 101, 4))
    assert list(checkpoint_periods(30, sparse=True)) == list(range(1, 31))


def test_a_plan_has_a_start_for_every_radius_and_leaves_out_those_without_a_step():
    device = torch.device("cpu")
    long, short = (plan_checkpoints(L1_SCHEDULE, steps, True, device) for steps in (100, 3))
    assert long.is_start.nonzero().flatten().tolist() == [0, 31, 62] and len(long) == 103
    assert long.eps_at(torch.tensor([30, 31, 61, 62, 102, 103]), 2.0).tolist() == [6, 4, 4, 2, 2, 2]
    assert short.radii == (1.0,) and len(short) == 4


@pytest.mark.parametrize("text", TEXTS[:2])
def test_the_step_is_halved_at_checkpoints_only_and_at_most_eight_times(text):
    threat, x = Threat.parse(text), images()
    _, states = follow(Apgd(), OneByOne(), x, threat)
    steps = torch.stack([state["step"] for state in states])
    changed = (steps[1:] != steps[:-1]).any(1).nonzero().flatten().tolist()
    assert set(changed) <= {22, 41, 57, 70, 80, 87, 93, 99}
    assert torch.equal(steps[0], torch.full((4,), 2 * threat.eps, dtype=torch.float64))
    ratios = steps[1:] / steps[:-1]
    assert ((ratios == 1) | (ratios == 0.5)).all()


@pytest.mark.parametrize("text", TEXTS[:2])
def test_a_flat_loss_halves_the_step_at_all_eight_checkpoints(text):
    threat = Threat.parse(text)
    flat = lambda x: (0 * x).flatten(1)[:, :4] + torch.arange(4.0)  # noqa: E731
    _, states = follow(Apgd(), flat, images(1), threat)
    assert torch.equal(states[-1]["step"], torch.full((1,), 2 * threat.eps / 2**8, dtype=torch.float64))


def test_a_loss_that_always_rises_never_halves_the_step():
    threat, search = Threat.parse("L2:1/2"), Apgd()
    state = begin(search, OneByOne(), images(2), threat)
    for t in range(101):
        answer = query_model(search, OneByOne(), state, threat, True)
        risen = replace(answer, loss=torch.full((1, 2), float(t), dtype=torch.float64))
        state = search.tell(state, risen, threat)
    assert torch.equal(state["step"], torch.full((2,), 1.0, dtype=torch.float64))


def test_steps_in_l1_get_sparser_or_shorter_but_never_below_a_tenth():
    threat = Threat.parse("L1:2")
    _, states = follow(Apgd(steps=30, schedule=L1_SCHEDULE), OneByOne().float(), images().float(), threat)
    assert states[0]["num_coordinates"].tolist() == [6] * 4 and states[0]["step"].tolist() == [6.0] * 4
    for t, state in enumerate(states):
        eps = 6 if t < 10 else 4 if t < 20 else 2
        assert (state["step"] >= eps / 10 * (1 - 1e-6)).all() and (state["step"] <= eps).all()
        assert (state["num_coordinates"] >= 1).all() and (state["num_coordinates"] <= 18).all()
    assert (states[-1]["step"] < 1).any() and (states[-1]["num_coordinates"] < 6).any()


# What a search promises


@THREATS
@pytest.mark.parametrize("schedule", [((1.0, 1.0),), L1_SCHEDULE])
def test_every_point_lies_in_its_ball_and_in_the_box(threat, schedule):
    x = images(6).round(decimals=1).float()
    model = OneByOne().float()
    search = Apgd(steps=20, schedule=schedule)
    asked, _ = follow(search, model, x, threat)
    sparse = isinstance(threat.norm, L1)
    at = plan_checkpoints(schedule, 20, sparse, torch.device("cpu"))
    for t, point in enumerate(asked):
        eps = float(at.eps_at(torch.tensor([t]), threat.eps))
        assert (threat.norm.length(point - x) <= eps + SUCCESS_SLACK * max(1, eps)).all()
        assert point.min() >= 0 and point.max() <= 1
    assert all(threat.contains(x, point, slack=SUCCESS_SLACK).all() for point in asked[-8:])


@THREATS
def test_the_start_lies_on_the_boundary_where_the_box_allows_it(threat):
    x = torch.full((4, 3, 3, 3), 0.5, dtype=torch.float64)
    starts = [begin(Apgd(), OneByOne(), x, threat, number=number)["point"] for number in (0, 1)]
    for start in starts:
        torch.testing.assert_close(threat.norm.length(start - x), torch.full((4,), threat.eps).double())
    assert (starts[0] != starts[1]).flatten(1).any(1).all()


def test_the_start_in_l1_is_sparse():
    x = torch.full((4, 3, 8, 8), 0.5, dtype=torch.float64)
    start = begin(Apgd(), OneByOne(pixels=192), x, Threat.parse("L1:2"))["point"]
    assert ((start != x).flatten(1).sum(1) < 40).all()


@pytest.mark.parametrize(("schedule", "asks"), [(((1.0, 1.0),), 11), (L1_SCHEDULE, 13)])
def test_start_and_every_step_are_queried_once(schedule, asks):
    asked, states = follow(Apgd(steps=10, schedule=schedule), OneByOne(), images(), Threat.parse("L1:1"))
    assert len(asked) == asks and torch.equal(asked[0], states[0]["point"])


@THREATS
def test_the_best_loss_never_falls_and_is_the_one_of_the_best_point(threat):
    model, search = OneByOne(), Apgd(steps=20, surrogate="dlr")
    _, states = follow(search, model, images(), threat)
    losses = torch.stack([state["best_loss"] for state in states[1:]])
    assert (losses.diff(dim=0) >= 0).all()
    assert torch.equal(search.loss(states[-1], model(states[-1]["best"])), losses[-1])


def test_tell_leaves_the_old_state_alone_and_no_two_names_share_memory():
    for text in TEXTS:
        model, search, threat = OneByOne(), Apgd(steps=10, schedule=L1_SCHEDULE), Threat.parse(text)
        state = begin(search, model, images(), threat)
        names = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        for _ in range(13):
            before = {name: tensor.clone() for name, tensor in state.items()}
            answer = query_model(search, model, state, threat, True)
            new = search.tell(state, answer, threat)
            assert all(torch.equal(state[name], before[name]) for name in before)
            assert {name: (tensor.shape, tensor.dtype) for name, tensor in new.items()} == names
            memory = [tensor.untyped_storage().data_ptr() for tensor in (*new.values(), answer.x)]
            assert len(set(memory)) == len(memory)
            state = new


# Independence of neighbours


@THREATS
@pytest.mark.parametrize(
    "search",
    [Apgd(steps=10), Apgd(steps=10, surrogate="dlr", targets=3), Apgd(steps=10, schedule=L1_SCHEDULE)],
    ids=["ce", "targeted", "enlarged"],
)
def test_neighbours_their_order_and_their_progress_change_nothing(search, threat):
    model, x, numbers = OneByOne().float(), images(6).float(), [30, 1, 12, 5, 8, 99]
    number = 1 if search.targets else 0
    alone = [
        torch.cat(follow(search, model, x[i : i + 1], threat, rows=[numbers[i]], number=number)[0])
        for i in range(6)
    ]
    together = torch.stack(follow(search, model, x, threat, rows=numbers, number=number)[0])
    order = [3, 0, 5, 2, 4, 1]
    permuted = follow(search, model, x[order], threat, rows=[numbers[i] for i in order], number=number)[0]
    for i in range(6):
        assert torch.equal(alone[i], together[:, i])
        assert torch.equal(alone[i], torch.stack(permuted)[:, order.index(i)])
    # A batch of three, where rows replace others that are not finished.
    waiting, seats, paths = [3, 4, 5], [0, 1, 2], {i: [] for i in range(6)}
    state = begin(search, model, x[:3], threat, rows=numbers[:3], number=number)
    for t in range(30):
        answer = query_model(search, model, state, threat, True)
        for slot, i in enumerate(seats):
            paths[i].append(answer.x[slot])
        state = search.tell(state, answer, threat)
        if t % 5 == 3 and waiting:
            slot, i = t % 3, waiting.pop(0)
            for name, row in begin(
                search, model, x[i : i + 1], threat, rows=[numbers[i]], number=number
            ).items():
                state[name][slot] = row[0]
            seats[slot] = i
    lengths = {len(path) for path in paths.values()}
    assert len(lengths) > 3
    for i, path in paths.items():
        shared = min(len(path), len(alone[i]))
        assert shared >= 4 and torch.equal(torch.stack(path[:shared]), alone[i][:shared])


# Optimum


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        *((text, {}) for text in ("Linf:1/20", "L2:1/10", "L1:1/5", "Linf:0.6")),
        ("L2:1/10", {"surrogate": "dlr"}),
        ("Linf:1/20", {"targets": 1}),
        ("L2:1/10", {"schedule": L1_SCHEDULE}),
        ("L1:3", {"schedule": L1_SCHEDULE}),
    ],
)
def test_the_optimum_of_a_linear_network_is_reached(text, fields):
    # With logits (0, w.x) and label 0 every loss rises with w.x.
    generator = torch.Generator().manual_seed(0)
    x = 0.3 + 0.4 * torch.rand(3, 3, 6, 6, generator=generator)
    w = torch.randn(3, 6, 6, generator=generator) / 10
    threat, search, y = Threat.parse(text), Apgd(steps=60, **fields), torch.zeros(3, dtype=torch.long)

    def linear(x):
        rise = (x * w).flatten(1).sum(1) - 3
        return torch.stack([torch.zeros_like(rise), rise], 1)

    state = search.begin(RoundInit(x, y, linear(x), threat, Rng(0), 0))
    while not search.is_finished(state).all():
        state = search.tell(state, query_model(search, linear, state, threat, True), threat)
    gain = ((state["best"] - x) * w).flatten(1).sum(1)
    best = torch.tensor([climb(x[i], w, str(threat.norm), threat.eps) for i in range(3)])
    # A step in L1 moves two coordinates as long as the best point has changed two, whatever their slopes.
    share = 0.85 if isinstance(threat.norm, L1) else 1 - 1e-5
    assert (gain >= best * share).all() and (gain <= best * (1 + 1e-5)).all()


def climb(x, w, norm, eps):
    """The largest gain of w.x inside ball and box; in L2, where the box does not bind."""
    room = torch.where(w > 0, 1 - x, x).flatten()
    slope = w.abs().flatten()
    if norm == "Linf":
        return float((slope * room.clamp(max=eps)).sum())
    if norm == "L2":
        return float(eps * slope.norm())
    gain, left = 0.0, eps
    for i in slope.argsort(descending=True).tolist():
        taken = min(left, float(room[i]))
        gain, left = gain + float(slope[i]) * taken, left - taken
    return gain


# Classes, targets, losses


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 8, 10, 100])
@LOSSES
def test_any_number_of_classes_works_and_the_loss_is_named(classes, fields):
    search, model, x = (
        Apgd(steps=1, **fields | {"targets": 9 * ("targets" in fields)}),
        OneByOne(classes),
        images(),
    )
    targeted = "targets" in fields
    assert search.num_rounds(classes) == (min(9, classes - 1) if targeted else 1)
    few = classes < (4 if targeted else 3)
    name = "margin" if fields["surrogate"] == "dlr" and few else fields["surrogate"]
    assert search.loss_name(classes) == ("targeted " if targeted else "") + name
    _, y = natural(model, x)
    result = perturb(search, model, x, y, Threat.parse("Linf:1/255"), Rng(0))
    assert result.x.shape == x.shape and result.passes.forwards <= 1 + 2 * search.num_rounds(classes)


@pytest.mark.parametrize(("classes", "targets", "count"), [(5, 3, 3), (5, 9, 4), (2, 9, 1)])
def test_targets_are_the_likeliest_other_classes_in_turn(classes, targets, count):
    model, x, threat = OneByOne(classes), images(), Threat.parse("Linf:1/255")
    search = Apgd(surrogate="dlr", targets=targets, restarts=2)
    logits, y = natural(model, x)
    assert search.num_rounds(classes) == 2 * count
    states = [begin(search, model, x, threat, number=number) for number in range(2 * count)]
    ranked = logits.argsort(1, descending=True)
    for number in range(2 * count):
        assert torch.equal(states[number]["target"], ranked[:, 1 + number % count])
    assert not torch.equal(states[0]["point"], states[count]["point"])
    wrong = search.begin(RoundInit(x, ranked[:, 1], logits, threat, Rng(0), 0))
    assert torch.equal(wrong["target"], ranked[:, 0])
    assert all((state["target"] != y).all() for state in states)


def test_ratios_of_logits_equal_their_definitions():
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30
    y, t = torch.arange(40) % 6, (torch.arange(40) + 1 + torch.arange(40) % 5) % 6
    for name, ours in (
        ("dlr", dlr(z, y)),
        ("targeted dlr", targeted_dlr(z, y, t)),
        ("targeted margin", targeted_margin(z, y, t)),
    ):
        expected = [float(twin.climbed(name, z[i], int(y[i]), int(t[i]))) for i in range(40)]
        assert ours.tolist() == pytest.approx(expected), name
    assert torch.equal(dlr(z, y) > 0, z.argmax(1) != y)
    torch.testing.assert_close(dlr(1e-3 * z - 7, y), dlr(z, y))
    torch.testing.assert_close(targeted_dlr(1e3 * z + 7, y, t), targeted_dlr(z, y, t))


def test_ratios_of_equal_logits_are_finite():
    z, y = torch.zeros(3, 5, requires_grad=True), torch.tensor([0, 1, 2])
    for loss in (dlr(z, y), targeted_dlr(z, y, y + 1)):
        (g,) = torch.autograd.grad(loss.sum(), z)
        assert loss.tolist() == [0, 0, 0] and g.isfinite().all()


# The gateway, and values


def test_perturb_runs_apgd_and_counts_its_passes():
    model, x = OneByOne(), images()
    _, y = natural(model, x)
    strong = perturb(Apgd(steps=30), model, x, y, Threat.parse("Linf:0.3"), Rng(0))
    assert strong.fooled is not None and strong.fooled.all() and (model(strong.x).argmax(1) != y).all()
    weak = perturb(Apgd(steps=7, restarts=2), model, x, y, Threat.parse("Linf:1/1000"), Rng(0))
    assert weak.fooled is not None and not weak.fooled.any() and torch.equal(weak.x, x)
    assert weak.passes == Passes(forwards=1 + 2 * 8, backwards=2 * 8)


@THREATS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_raises_an_error(threat, bad):
    def poisoned(g):
        g = g.clone()
        g[1, 0, 0, 0] = bad
        return g

    def nan_network(x):
        x = x.clone()
        if x.requires_grad:
            x.register_hook(poisoned)
        return model(x)

    model, x = OneByOne(), images()
    _, y = natural(model, x)
    with pytest.raises(ThreatError, match="gradient of 1 of 4 images is not finite"):
        perturb(Apgd(steps=5), nan_network, x, y, threat, Rng(0))


@pytest.mark.parametrize("text", ["Linf:0", "L2:0", "L1:0"])
def test_a_budget_of_zero_finds_nothing(text):
    model, x = OneByOne(), images()
    _, y = natural(model, x)
    result = perturb(Apgd(steps=5), model, x, y, Threat.parse(text), Rng(0))
    assert torch.equal(result.x, x) and result.fooled is not None and not result.fooled.any()


def test_apgd_is_a_value_that_round_trips_through_a_table():
    table = OneOf(lambda: {"apgd": Apgd})
    for search in (Apgd(), Apgd(steps=20, surrogate="dlr", targets=9, restarts=2, schedule=L1_SCHEDULE)):
        assert table.decode(table.encode(search)) == search and hash(search) == hash(search)
    raw = {"kind": "apgd", "schedule": [[3, 0.3], [2, 0.3], [1, 0.4]]}
    assert table.decode(raw) == Apgd(schedule=L1_SCHEDULE)


@pytest.mark.parametrize(
    "schedule", [(), ((2.0, 1.0),), ((1.0, 0.9),), ((0.0, 0.5), (1.0, 0.5)), ((2.0, 0.0), (1.0, 1.0))]
)
def test_a_schedule_that_does_not_end_in_the_ball_or_add_up_is_refused(schedule):
    with pytest.raises(ValidationError):
        Apgd(schedule=schedule)
    assert math.isclose(sum(share for _, share in L1_SCHEDULE), 1)
