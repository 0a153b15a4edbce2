"""FAB example by example, and where it has nothing to hold on to."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from allrounder.attacks.base import perturb
from allrounder.attacks.fab import Fab
from allrounder.attacks.search.base import query_model
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from tests.unit.attacks.test_fab import FAR, THREATS, THREE, follow, images, network, question


class Rowwise:
    """A network whose rows are computed without any sum across them, so that a batch changes no bit."""

    def __init__(self, classes=4):
        g = torch.Generator().manual_seed(4)
        self.a, self.b = torch.randn(2, 1, classes, 3, 6, 6, generator=g, dtype=torch.float64)

    def __call__(self, x):
        return ((3 * x[:, None] * self.a).tanh() * self.b).sum(dim=(2, 3, 4))


# Every example goes its own way


@THREE
@pytest.mark.parametrize("targets", [3, 0])
def test_an_example_does_not_depend_on_its_neighbours(norm, targets):
    model, x, threat = Rowwise(), images(7), Threat(norm, str(FAR[norm.name]))
    y, rows, search = model(x).argmax(1), torch.arange(7), Fab(steps=4, targets=targets, restarts=2)

    def start(some):
        rng = Rng(3).fold_in("round", 1).per_example(rows[some])
        return search.begin(question(model, x[some], y[some], threat, 1, rng))

    def finish(state):
        return follow(search, model, state, threat)[0][-1]

    together = finish(start(rows))
    assert together["best_length"].isfinite().any()

    def check(state, some):
        for name in ("x", "y", "targets", "point", "steps_taken", "steps_checked", "best_length"):
            assert torch.equal(state[name], together[name][some]), name

    for i in (0, 5):
        check(finish(start(rows[i : i + 1])), rows[i : i + 1])
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    check(finish(start(order)), order)
    # Staggered: four begin, and the others join at the beginning of a later step.
    state = start(rows[:4])
    for gradient in 2 * search.needs_grad_cycle:
        state = search.tell(state, query_model(search, model, state, threat, gradient), threat)
    assert (state["steps_taken"] == 2).all()
    later = start(rows[4:])
    check(finish({name: torch.cat([state[name], later[name]]) for name in state}), rows)


@pytest.mark.parametrize("targets", [0, 2])
def test_tell_returns_a_new_state_of_the_same_names_and_shapes(targets):
    model, x, threat = network(), images(), Threat.parse("Linf:0.1")
    y, search = model(x).argmax(1), Fab(steps=5, targets=targets)
    state = search.begin(question(model, x, y, threat))
    for gradient in 5 * search.needs_grad_cycle:
        kept = {name: tensor.clone() for name, tensor in state.items()}
        after = search.tell(state, query_model(search, model, state, threat, gradient), threat)
        assert all(torch.equal(state[name], kept[name]) for name in kept)
        assert {n: (t.shape, t.dtype) for n, t in after.items()} == {
            n: (t.shape, t.dtype) for n, t in kept.items()
        }
        memory = [tensor.untyped_storage().data_ptr() for tensor in after.values()]
        assert len(set(memory)) == len(memory)
        state = after
    assert search.is_finished(state).all()


# Odd cases


@THREATS
@pytest.mark.parametrize("targets", [0, 1])
def test_flat_networks_are_left_alone(text, targets):
    threat, x = Threat.parse(text), images(4)
    search = Fab(steps=2, targets=targets, restarts=2)
    for logits in (torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3)):
        result = perturb(search, lambda x, z=logits: z.double() + 0 * x.sum(dim=(1, 2, 3))[:, None], x,
                        torch.zeros(4, dtype=torch.long), threat, Rng(0))  # fmt: skip
        assert torch.equal(result.x, x) and result.fooled is not None and not result.fooled.any()


@THREATS
@pytest.mark.parametrize("targets", [1, 0])
def test_misclassified_images_and_empty_balls_work(text, targets):
    model, x = network(), images(4)
    wrong = model(x).argmin(1)
    norm = Threat.parse(text).norm
    search = Fab(steps=4, targets=targets, restarts=2)
    for threat in (Threat.parse(text), Threat(norm, "0")):
        for number in range(search.num_rounds(4)):
            states, _ = follow(search, model, search.begin(question(model, x, wrong, threat, number)), threat)
            assert all(s["point"].isfinite().all() for s in states)
            assert not (states[0]["targets"] == wrong[:, None]).any()
    result = perturb(search, model, x, model(x).argmax(1), Threat(norm, "0"), Rng(0))
    assert torch.equal(result.x, x) and result.fooled is not None and not result.fooled.any()


@pytest.mark.parametrize("targets", [0, 1])
def test_nan_gradient_is_not_hidden(targets):
    def nan_network(x):
        logits = model(x)
        return logits + (x.sum(dim=(1, 2, 3)) * 0).sqrt()[:, None] * torch.arange(4)

    model, x, threat = network(), images(), Threat.parse("L2:1")
    y, search = model(x).argmax(1), Fab(steps=2, targets=targets)
    states, _ = follow(search, nan_network, search.begin(question(model, x, y, threat)), threat)
    assert any(s["point"].isnan().any() for s in states)


@pytest.mark.parametrize(
    "fields",
    [{"steps": 0}, {"targets": -1}, {"restarts": 0}, {"alpha_max": 1.5}, {"eta": 0.9}, {"beta": -0.1}],
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValidationError):
        Fab(**fields)
