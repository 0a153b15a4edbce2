from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.config.fields import adapter, frozen_config
from allrounder.threats.norms import L1, L2, Linf
from allrounder.threats.threat import AnyOf, Threat


@frozen_config
class Holder:
    threat: Threat


@given(
    norm=st.sampled_from(["Linf", "L2", "L1", "L1(0.2)"]), top=st.integers(0, 999), bottom=st.integers(1, 999)
)
def test_threat_text_round_trips(norm, top, bottom):
    top = min(top, bottom) if norm == "Linf" else top
    text = f"{norm}:{top}/{bottom}"
    threat = Threat.parse(text)
    assert str(threat) == threat.to_toml() == text
    assert Threat.parse(str(threat)) == threat
    assert threat.eps == float(Fraction(top, bottom))


@pytest.mark.parametrize("text", ["Linf:8/255", "linf:8/255", " L_INF : 8/255 ", "inf:8/255"])
def test_usual_spellings_are_parsed(text):
    assert Threat.parse(text) == Threat(Linf(), "8/255")
    assert str(Threat.parse(text)) == "Linf:8/255"


def test_numbers_are_kept_as_written():
    assert str(Threat.parse("l2:0.50")) == "L2:0.50"
    assert Threat.parse("L2:0.5").eps == 0.5
    assert Threat.parse("L1:12").eps == 12
    assert Threat.parse("Linf:0").eps == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Linf:8/0", "divides by zero"),
        ("Linf:-1/255", "negative, expected 0 or more"),
        ("Linf:nan", "expected a number or a fraction such as 8/255, got 'nan'"),
        ("Linf:inf", "expected a number or a fraction such as 8/255, got 'inf'"),
        ("L2:1e400", "too large"),
        ("L2:", "expected a number or a fraction"),
        ("Linf", "NORM:BUDGET"),
        ("Linf:8:255", "NORM:BUDGET"),
        (7, "NORM:BUDGET"),
        (None, "NORM:BUDGET"),
        ("Lif:8/255", "unknown norm 'Lif' (known: Linf, L2, L1); did you mean \"Linf\"?"),
    ],
)
def test_unreadable_threats_are_refused_with_what_was_expected(text, message):
    with pytest.raises(ValueError) as error:
        Threat.parse(text)
    assert message in str(error.value)
    assert str(error.value).startswith(f"threat {text!r}")


def test_a_threat_made_in_code_is_checked_too():
    with pytest.raises(ValueError, match="negative"):
        Threat(L2(), "-1")


def test_threats_are_values():
    threat = Threat.parse("L2:1/2")
    assert threat == Threat(L2(), "1/2") != Threat(L2(), "0.5")
    assert {threat, Threat(L2(), "1/2")} == {threat}
    assert pickle.loads(pickle.dumps(threat)) == threat
    with pytest.raises(AttributeError):
        threat.budget = "3"  # pyright: ignore


def test_a_recipe_reads_and_writes_a_threat_as_text():
    holder = adapter(Holder).validate_python({"threat": "l2:128/255"})
    assert holder == Holder(threat=Threat(L2(), "128/255"))
    assert adapter(Holder).dump_python(holder) == {"threat": "L2:128/255"}


@pytest.mark.parametrize(
    ("budget", "k"),
    [
        *((budget, 8) for budget in ("0.031", "8/256", "0.0314", "0.03125", "0.0313725", "0.032")),
        *(("0.008", 2), ("2/256", 2), ("0.004", 1), ("0.0157", 4), ("4/256", 4)),
        *(("0.063", 16), ("16/256", 16), ("0.24706", 63)),
    ],
)
def test_budget_near_a_fraction_of_255_gives_a_warning(budget, k):
    question = Threat.parse(f"Linf:{budget}").budget_warning()
    number = f"{k / 255:.4g}"
    assert question == (
        f"Linf:{budget} is close to {k}/255 = {number}, but not equal; write Linf:{k}/255 if you meant that"
    )


def test_exact_fractions_of_255_give_no_warning():
    for k in range(128):
        for budget in (f"{k}/255", repr(k / 255), f"{2 * k}/510"):
            assert Threat.parse(f"Linf:{budget}").budget_warning() is None


def test_round_budgets_give_no_warning():
    for budget in ("0", "0.0", "3/10", "0.30", "1/10", "0.123", *(f"{k / 100:g}" for k in range(1, 51))):
        assert Threat.parse(f"Linf:{budget}").budget_warning() is None


@pytest.mark.parametrize(
    ("budget", "fix"),
    [
        *(("8", "; did you mean Linf:8/255?"), ("8.0", "; did you mean Linf:8/255?")),
        *(("7.5", ""), ("255", ""), ("256/255", ""), ("1.01", "")),
    ],
)
def test_linf_budget_above_one_is_refused(budget, fix):
    with pytest.raises(ValueError, match="a Linf budget is at most 1") as caught:
        Threat.parse(f"Linf:{budget}")
    assert str(caught.value).endswith(f"at most 1{fix}")


@pytest.mark.parametrize(
    ("text", "shape", "limit"),
    [
        *(("Linf:0.51", None, "0.5"), ("Linf:1", (1, 28, 28), "0.5")),
        *(("L2:13.9", (3, 32, 32), "13.86"), ("L2:7.01", (1, 28, 28), "7")),
        *(("L1:769", (3, 32, 32), "768"), ("L1(0.2):197", (1, 28, 28), "196")),
    ],
)
def test_budget_that_destroys_images_has_a_problem_and_gives_a_warning(text, shape, limit):
    problem = Threat.parse(text).size_problem(shape)
    assert problem is not None
    assert problem.startswith(f"{text}: expected a budget of at most {limit}, because images ")
    assert Threat.parse(text).budget_warning(shape) == problem


def test_forgotten_denominator_is_suggested():
    for text, shape in (("L2:128", (3, 32, 32)), ("Linf:1", None), ("L1:2000", (3, 16, 16))):
        problem = Threat.parse(text).size_problem(shape)
        assert problem is not None and problem.endswith(f"; did you mean {text}/255?")
    problem = Threat.parse("Linf:0.7").size_problem()
    assert problem is not None and "did you mean" not in problem


@pytest.mark.parametrize("text", ["Linf:0.5", "L2:7", "L1:196", "L1(0.2):196"])
def test_largest_budget_has_no_problem(text):
    assert Threat.parse(text).size_problem((1, 28, 28)) is None


@pytest.mark.parametrize(
    "text", ["L2:0.5", "L2:128/255", "L2:0.031", "L1:12", "L1(0.2):8", "L2:128", "L1:1e4"]
)
def test_other_norms_give_no_warning_without_a_shape(text):
    assert Threat.parse(text).budget_warning() is None


def test_containment_is_per_example_with_slack_and_box():
    threat, x0 = Threat.parse("Linf:1/10"), torch.full((6, 1, 2, 2), 0.95, dtype=torch.float64)
    x = x0.clone()
    x[1] -= 0.1 + 9e-6  # inside the slack
    x[2] -= 0.1 + 2e-5
    x[3] += 0.06  # in the ball, out of the box
    x[4, 0, 0, 0] = float("nan")
    x[5, 0, 0, 0] = float("inf")
    assert threat.contains(x0, x).tolist() == [True, True, False, False, False, False]
    assert threat.contains(x0, x, slack=0.02).tolist() == [True, True, True, True, False, False]


def test_slack_grows_with_budgets_above_one():
    threat, x0 = Threat.parse("L1:12"), torch.zeros(1, 1, 1, 20, dtype=torch.float64)
    assert threat.contains(x0, x0 + 12.0001 / 20).all()
    assert not threat.contains(x0, x0 + 12.001 / 20).any()
    torch.testing.assert_close(threat.excess(x0, x0 + 12.6 / 20), torch.tensor([0.05], dtype=torch.float64))


@pytest.mark.parametrize("text", ["Linf:8/255", "L2:1/2", "L1:2"])
def test_projected_images_are_contained(text):
    threat = Threat.parse(text)
    x0 = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = threat.project(x0, x0 + torch.randn(x0.shape, generator=torch.Generator().manual_seed(1)))
    assert threat.contains(x0, x).all()
    assert (threat.excess(x0, x) <= 1e-6).all()


def test_a_union_contains_what_any_of_its_threats_contains():
    union = AnyOf((Threat.parse("Linf:1/10"), Threat.parse("L1:1/2")))
    x0 = torch.full((4, 1, 4, 4), 0.5)
    x = x0.clone()
    x[1] += 0.1  # L1 length 1.6
    x[2, 0, 0, 0] += 0.4  # Linf length 0.4
    x[3] += 0.2
    assert union.contains(x0, x).tolist() == [True, True, True, False]
    assert str(union) == "Linf:1/10 or L1:1/2"
    assert union == AnyOf((Threat(Linf(), "1/10"), Threat(L1(), "1/2")))


def test_an_empty_union_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        AnyOf(())
