"""A compiled copy crafts what the folded one crafts, or it is not used; verdicts never see it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Pgd, perturb
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.distributed import Seat, World
from allrounder.errors import RecipeError
from allrounder.evaluation.evaluate import evaluate
from allrounder.inference import compiling
from allrounder.inference.compiling import Compiled, compiled
from allrounder.inference.fold import Folded, frozen
from allrounder.objectives import Natural
from allrounder.recipe import compute
from allrounder.recipe.compute import COMPILED, Compute, crafting_compiled, plain
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.training.planning import plan
from allrounder.training.run import load
from allrounder.training.trainer import train
from tests.support.networks import Tiny, Unfoldable, blobs, tiny
from tests.support.trainings import PAIR, EndsAfter, go, recipe, remains

CPU, LINF = torch.device("cpu"), Threat.read("Linf:0.1")
COMPILE = ("epochs = 3", "epochs = 3\ncompute = { compile = true }")
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch needs a C++ compiler for this"
)

Made = list[list[tuple[torch.Size, bool]]]


def faked(change: Callable[[Tensor], Tensor], made: Made) -> Callable[..., Any]:
    """A compiler that changes logits, and notes for every network what goes through it."""

    def compile_(network: nn.Module, **how: Any) -> Callable[[Tensor], Tensor]:
        assert how == {"dynamic": False, "fullgraph": True}
        passed: list[tuple[torch.Size, bool]] = []
        made.append(passed)

        def run(x: Tensor) -> Tensor:
            passed.append((x.shape, torch.is_grad_enabled() and x.requires_grad))
            return change(network(x))

        return run

    return compile_


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A compiler that changes nothing, on a machine that has one."""
    found: Made = []
    monkeypatch.setattr(torch, "compile", faked(lambda logits: logits, found))
    monkeypatch.setattr(compute, "uncompiled", lambda *_: None)
    return found


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    compute.uncompiled.cache_clear()
    yield lambda program: monkeypatch.setattr(compute, "COMPILING", program)
    compute.uncompiled.cache_clear()


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every form that is compiled for good, or None for one that is not to be used."""
    found: list[object] = []
    right = compiling._form

    def noted(*given: Any) -> Any:
        found.append(right(*given))
        return found[-1]

    monkeypatch.setattr(compiling, "_form", noted)
    return found


def network(kind: type[nn.Module] = Tiny, seed: int = 1) -> nn.Module:
    with Draws(seed).ambient():
        return kind()


def images(n: int) -> tuple[Tensor, Tensor]:
    split = blobs(48).train
    return split.fetch(torch.arange(n)), split.labels[:n]


def folded_of(model: nn.Module, x: Tensor) -> Folded:
    found = frozen(model, x)
    assert found is not None
    return found


def numbers(folded: Folded) -> list[Tensor]:
    return [t.clone() for t in (*folded.network.parameters(), *folded.network.buffers())]


def test_batches_of_other_sizes_and_passes_without_a_gradient_are_not_compiled(made: Made):
    model, attack = network(), Pgd(steps=3, loss="kl")
    with crafting_compiled(12):
        for n in (12, 5, 12):
            perturb(attack, model, *images(n), LINF, Draws(0))
    assert len(made) == 1, "once for the network"
    (passed,) = made
    assert passed == [(torch.Size([12, 1, 8, 8]), True)] * (1 + 2 * attack.steps), "a check, then gradients"


def test_without_being_asked_nothing_is_compiled(made: Made):
    perturb(Pgd(steps=1), network(), *images(12), LINF, Draws(0))
    with crafting_compiled(12), plain(CPU):
        perturb(Pgd(steps=1), network(), *images(12), LINF, Draws(0))
    with crafting_compiled(12):
        perturb(Pgd(steps=1), network(Unfoldable), *images(12), LINF, Draws(0))
        perturb(Pgd(steps=1), network(), *images(12), LINF, Draws(0), norm_layers="train")
    assert made == [] and COMPILED.get() is None


def test_verdicts_are_found_without_compiling_whatever_surrounds_them(made: Made):
    with crafting_compiled(6):
        evaluate(network(), blobs(6, 6).test, probes=["pgd-2@Linf:0.1"], check="skip")
    assert made == []


def _fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such compiler\n\nSet TORCHDYNAMO_VERBOSE=1 for more")


def _flat(logits: Tensor) -> Tensor:
    """The same answers, with other gradients."""
    return logits.detach() + 0.9 * (logits - logits.detach())


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (_fails, "RuntimeError: no such compiler"),
        (faked(lambda logits: 1.01 * logits, []), "its logits differ by 1.0e-02 relatively, expected 1e-03"),
        (faked(_flat, []), "its input gradients differ by 1.0e-01 relatively, expected 2e-02"),
        (faked(lambda logits: logits * torch.nan, []), "its logits differ by nan"),
    ],
    ids=["fails", "logits", "gradients", "nan"],
)
def test_a_copy_that_cannot_be_compiled_or_disagrees_is_used_as_it_is_and_that_is_said_once(
    compiler: Callable[..., Any], reason: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(torch, "compile", compiler)
    model, (x, y) = network(), images(12)
    folded = folded_of(model, x)
    before = numbers(folded)
    with caplog.at_level(logging.INFO, "allrounder"):
        assert [compiled(folded, x) for _ in range(3)] == [folded] * 3
    assert all(map(torch.equal, numbers(folded), before)), "it has its numbers back"
    assert len(caplog.records) == 1 and "TORCHDYNAMO" not in caplog.text
    assert "attacks on (12, 1, 8, 8) use the folded copy, not a compiled one: " in caplog.text
    assert reason in caplog.text
    usual = perturb(Pgd(steps=2), model, x, y, LINF, Draws(0)).x
    with crafting_compiled(12):
        assert torch.equal(perturb(Pgd(steps=2), model, x, y, LINF, Draws(0)).x, usual)


def test_half_precision_is_allowed_more_and_has_a_form_of_its_own(monkeypatch: pytest.MonkeyPatch):
    found: Made = []
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: torch.enable_grad())
    monkeypatch.setattr(torch, "compile", faked(lambda logits: 1.01 * logits, found))
    x, _ = images(12)
    folded = folded_of(network(), x)
    assert compiled(folded, x) is folded
    assert isinstance(compiled(folded, x, torch.bfloat16), Compiled) and len(found) == 2


def test_what_was_trained_does_not_decide_whether_a_copy_agrees():
    """Else a training would go on otherwise after a stop."""
    x, seen = images(4)[0], list[list[Tensor]]()
    for seed in (1, 2):
        folded = folded_of(network(seed=seed), x)
        before = numbers(folded)
        with compiling._other_numbers(folded.network):
            seen.append(numbers(folded))
            assert all(bool(t.any()) for t in seen[-1])
        assert all(map(torch.equal, numbers(folded), before))
        assert not any(map(torch.equal, seen[-1], before))
    assert all(map(torch.equal, *seen))


def test_a_training_compiles_for_full_batches_and_for_nothing_else(made: Made, tmp_path: Path):
    go(recipe(PAIR, COMPILE), tmp_path / "run")
    (passed,) = made
    # Of three batches an epoch two are full, and each of them is two steps of the attack.
    assert passed == [(torch.Size([16, 1, 8, 8]), True)] * (1 + 3 * 2 * 2)


def test_ranks_that_share_a_learner_compile_for_their_own_images():
    task = Task(name="natural", objective=Natural(), lr=Constant(value=0.1))
    seats = [Seat(), Seat(index=0, count=3), Seat(index=2, count=3)]
    made = [Learner(task, network(), seat, 0, Clock(3, 4), Compute(compile=True), 16) for seat in seats]
    assert [who.compiled for who in made] == [16, 5, 6]
    assert Learner(task, network(), Seat(), 0, Clock(3, 4), Compute(), 16).compiled is None


def test_a_plan_says_where_the_compiler_is_counted(made: Made):
    asked = recipe(PAIR, COMPILE)
    told = plan(asked, steps=1, model=tiny, data=blobs(48)).remarks
    assert any("compiling is part of no step" in line for line in told) and len(made) == 1


def test_the_choice_is_in_the_fingerprint_and_its_absence_is_not():
    tf32 = "compute.tf32=true"
    off = [Recipe.load("embedded/at-linf", chosen) for chosen in ([], [tf32])]
    on = [Recipe.load("embedded/at-linf", ["compute.compile=true", *chosen]) for chosen in ([], [tf32])]
    said = Recipe.load("embedded/at-linf", ["compute.compile=false", tf32])
    assert said == off[1] and said.fingerprint() == off[1].fingerprint()
    assert len({each.fingerprint() for each in (*off, *on)}) == 4
    assert [each.dump().count("compile") for each in (*off, *on)] == [0, 0, 1, 1]
    assert all(Recipe.loads(each.dump()) == each for each in (*off, *on))


def test_a_machine_without_a_compiler_is_a_refusal_and_leaves_no_folder(
    pretend: Callable[[str], None], tmp_path: Path
):
    asked = tmp_path / "asked"
    pretend(f"import sys; open({str(asked)!r}, 'a').write('x'); sys.exit('No working C++ compiler')")
    for _ in range(2):
        with pytest.raises(RecipeError) as refused:
            go(recipe(PAIR, COMPILE), tmp_path / "run", world=World(0, 1, CPU))
        assert str(refused.value) == (
            "compute.compile: got true, and a small network that was compiled for cpu in fp32 failed: "
            "No working C++ compiler; expected it to run forward and backward; install a C++ compiler that "
            "torch can use, or set compute.compile to false"
        )
    assert asked.read_text() == "x", "a machine is asked once"
    assert [path.name for path in tmp_path.iterdir()] == ["asked"]


def test_a_compiler_that_hangs_is_a_refusal(pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch):
    pretend("import time; time.sleep(60)")
    monkeypatch.setattr(compute, "PATIENCE", 0.3)
    with pytest.raises(RecipeError, match="did not end within 0 seconds"):
        Compute(compile=True).check(CPU)
    assert Compute().check(CPU) == [], "nobody is asked who need not answer"


@needs_compiler
@pytest.mark.slow
def test_a_compiled_copy_crafts_what_the_folded_one_does_and_follows_the_weights():
    from torch._dynamo.utils import counters

    model, (x, y) = network(), images(12)
    counters.clear()
    for _ in range(2):
        usual = perturb(Pgd(steps=3), model, x, y, LINF, Draws(0)).x
        with crafting_compiled(12):
            found = perturb(Pgd(steps=3), model, x, y, LINF, Draws(0)).x
        # A pixel whose gradient changes sign by rounding moves by a whole step: allowed to one in a hundred.
        assert float(((found - usual).abs() > 1e-6).float().mean()) <= 0.01
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(-2 * p)
    assert [form is not None for form in compiling.KNOWN[folded_of(model, x)].values()] == [True]
    assert counters["stats"]["unique_graphs"] == 1, "other weights are no reason to compile anew"


@pytest.mark.slow
@needs_compiler
def test_this_machine_can_compile_and_a_missing_compiler_is_found_out(monkeypatch: pytest.MonkeyPatch):
    compute.uncompiled.cache_clear()
    assert compute.uncompiled("fp32", "cpu") is None
    compute.uncompiled.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    with pytest.raises(RecipeError, match=r"No working C\+\+ compiler found"):
        Compute(compile=True).check(CPU)
    compute.uncompiled.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_a_compiled_training_is_repeated_and_resumed_to_the_bit(tmp_path: Path, forms: list[object]):
    asked = recipe(PAIR, COMPILE)
    whole = go(asked, tmp_path / "whole")

    with pytest.raises(KeyError):
        go(asked, tmp_path / "cut", progress=EndsAfter(5))
    go(asked, tmp_path / "cut", resume=True)
    go(asked, tmp_path / "again")
    assert remains(tmp_path / "cut") == remains(tmp_path / "again") == remains(whole.folder)
    assert len(forms) == 4 and None not in forms, "every session compiled"


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_compiler
def test_networks_that_were_trained_with_and_without_compiling_get_the_same_verdicts(
    tmp_path: Path, forms: list[object]
):
    """165 steps of adversarial training either way, then PGD-20 on 1000 images.

    Rounding that fusing changes would part the weights a little more with every step, so at most one verdict
    in fifty may differ, and neither network be stronger by more than one in a hundred, as in half precision.
    Where every operation rounds as before, all are equal: so they were when this was written.
    """
    found = dict[str, list[Any]]()
    for choice in ("false", "true"):
        asked = Recipe.load("embedded/at-linf", ["epochs=3", f"compute.compile={choice}"])
        model = load(train(asked, tmp_path / choice).folder)
        outcome = evaluate(model, asked.read_data(), probes=["pgd-20@Linf:0.1"], check="skip")
        for probe, predicted in outcome.predicted.items():
            found.setdefault(probe, []).append(predicted == outcome.label)
    assert found.keys() == {"natural", "pgd-20@Linf:0.1"}
    assert len(forms) == 1 and None not in forms, "one of the two was compiled"
    for plain_, compiled_ in found.values():
        assert len(plain_) == 1000 and 0.1 < plain_.mean() < 0.9, "all or nothing would tell nothing"
        assert (plain_ == compiled_).mean() >= 0.98
        assert abs(plain_.mean() - compiled_.mean()) <= 0.01


HALF = """
import torch
from allrounder.attacks import Pgd, perturb
from allrounder.inference.compiling import KNOWN
from allrounder.recipe.compute import Compute, crafting_compiled, uncompiled
from allrounder.inference.fold import frozen
from allrounder.nn.amp import in_precision
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from tests.support.networks import Tiny, blobs
assert uncompiled("bf16", "cpu") is None
torch.set_num_threads(1)
split = blobs(48).train
x, y = split.fetch(torch.arange(48)), split.labels
with Draws(1).ambient():
    model = Tiny()
network = in_precision(model, Compute(precision="bf16", compile=True))
found = []
for images in (None, 48):
    with crafting_compiled(images):
        found.append(perturb(Pgd(steps=3), network, x, y, Threat.read("Linf:0.1"), Draws(0)).x)
assert [*KNOWN[frozen(model, x)].values()] != [None]
print(float(((found[0] - found[1]).abs() > 1e-6).float().mean()))
"""


@pytest.mark.slow
@needs_compiler
def test_a_copy_is_compiled_in_half_precision_too():
    environment = {**os.environ, compute.ISA: compute.OLDER, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HALF]
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert child.returncode == 0, child.stderr
    # One gradient in fifty may change its sign, and with it the pixel moves by a whole step.
    assert float(child.stdout.split()[-1]) <= 0.02
