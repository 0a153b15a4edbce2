"""Half precision stays inside the network, and a machine is asked whether it can before a training begins."""

from __future__ import annotations

import os
import signal
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
from allrounder.data.base import Batches
from allrounder.distributed import Seat, World
from allrounder.errors import Diverged, RecipeError
from allrounder.evaluation.evaluate import evaluate
from allrounder.nn.amp import CALM, LARGEST, Cast, in_precision
from allrounder.nn.state import snapshot
from allrounder.objectives import Adversarial, Natural
from allrounder.recipe import compute
from allrounder.recipe.compute import Compute, tensor_floats
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.training import model_selection as selection
from allrounder.training.learner import Learner
from tests.support.networks import Tiny, Unfoldable, blobs, same
from tests.support.trainings import PAIR, EndsAfter, go, recipe, remains

CPU, LINF = torch.device("cpu"), Threat.read("Linf:0.1")
NATURAL = Task(name="natural", objective=Natural(), lr=Constant(value=0.1))
ADVERSARIAL = Task(name="linf", objective=Adversarial(threat=LINF), lr=Constant(value=0.1))
BF16 = ("epochs = 3", 'epochs = 3\ncompute = { precision = "bf16" }')


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let the child run another program; what was found out about this machine is asked anew after."""
    compute.failure.cache_clear()
    monkeypatch.delenv(compute.ISA, raising=False)
    yield lambda program: monkeypatch.setattr(compute, "PROGRAM", program)
    compute.failure.cache_clear()


@pytest.fixture(scope="module")
def able() -> None:
    """Skip where bf16 would kill this very process."""
    if compute.failure("bf16", "cpu") is not None:
        pytest.skip("this machine cannot compute in bf16 as the environment stands")


def switched() -> list[object]:
    return [getattr(switch, compute.SETTING) for switch in compute.SWITCHES]


def network(kind: type[Tiny] = Tiny) -> nn.Module:
    with Draws(1).ambient():
        return kind()


def batch() -> tuple[Tensor, Tensor]:
    split = blobs(24).train
    return split.fetch(torch.arange(24)), split.labels


def learner(task: Task, how: Compute) -> Learner:
    return Learner(task, network(), Seat(), 0, Clock(3, 4), how)


def test_a_child_that_dies_is_a_refusal_with_signal_and_remedy(pretend: Callable[[str], None]):
    dies = "import os, signal\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)"
    pretend(dies)
    with pytest.raises(RecipeError) as refused:
        Compute(precision="bf16").check(CPU)
    said = str(refused.value)
    assert said.startswith("compute.precision: got bf16, and a small network that tried it on cpu was killed")
    assert signal.SIGILL.name in said and "set compute.precision to fp32" in said
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE" in said, "with it the child lives, so it is offered"


def test_a_remedy_that_does_not_help_is_not_offered(pretend: Callable[[str], None]):
    pretend("import sys; sys.exit('no such kernel')")
    with pytest.raises(RecipeError, match=r"failed: no such kernel; .* set compute.precision to fp32$"):
        Compute(precision="bf16").check(CPU)


def test_a_child_that_hangs_is_a_refusal(pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch):
    pretend("import time; time.sleep(60)")
    monkeypatch.setattr(compute, "PATIENCE", 0.3)
    with pytest.raises(RecipeError, match="did not end within 0 seconds"):
        Compute(precision="bf16").check(CPU)


def test_the_machine_is_asked_once(pretend: Callable[[str], None], tmp_path: Path):
    counted = f"open({str(tmp_path / 'asked')!r}, 'a').write('x')"
    pretend(counted)
    for _ in range(3):
        assert Compute(precision="bf16").check(CPU) == []
    assert (tmp_path / "asked").read_text() == "x"


def test_a_refused_training_leaves_no_folder(pretend: Callable[[str], None], tmp_path: Path):
    pretend("import sys; sys.exit('no')")
    with pytest.raises(RecipeError, match=r"compute\.precision"):
        go(recipe(PAIR, BF16), tmp_path / "run", world=World(0, 1, CPU))
    assert list(tmp_path.iterdir()) == []


def test_half_precision_with_five_bits_of_exponent_is_for_cuda():
    with pytest.raises(RecipeError, match="got fp16 on cpu, expected a CUDA device"):
        Compute(precision="fp16").check(CPU)


def test_what_has_no_effect_is_said():
    assert Compute(tf32=True).check(CPU) == ["compute.tf32 has no effect on cpu"]
    assert Compute().check(CPU) == Compute(tf32=True).check(torch.device("cuda")) == []


def test_switches_of_torch_are_put_back_also_after_an_error():
    before = switched()
    for allowed in (True, False):
        with pytest.raises(KeyError), tensor_floats(allowed):
            assert switched() == [compute.ALLOWED if allowed else compute.FORBIDDEN] * 2
            raise KeyError
        assert switched() == before
        # What was named cannot be read as a flag, unless all is as torch left it.
        assert isinstance(torch.backends.cudnn.allow_tf32, bool)


def test_the_choice_is_in_the_fingerprint_and_its_absence_is_not():
    usual = Recipe.load("embedded/at-linf")
    assert usual.fingerprint() == Recipe.load("embedded/at-linf", ["compute.precision=fp32"]).fingerprint()
    others = [Recipe.load("embedded/at-linf", [f"compute.{it}"]) for it in ("precision=bf16", "tf32=true")]
    assert len({usual.fingerprint(), *(other.fingerprint() for other in others)}) == 3
    assert all(Recipe.loads(other.dump()) == other for other in others)
    assert "compute" not in [line.split(" = ")[0] for line in usual.dump().splitlines()]


def test_float32_is_the_network_itself():
    model = network()
    assert in_precision(model, Compute()) is in_precision(model, Compute(tf32=True)) is model


def test_a_network_in_another_type_is_refused():
    with pytest.raises(RecipeError, match=r"the network is in torch.float64, expected torch.float32"):
        in_precision(network().double(), Compute(precision="bf16"))


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("kind", [Tiny, Unfoldable])
@pytest.mark.parametrize("norm_layers", ["eval", "train", "train_frozen"])
def test_images_logits_and_gradients_are_float32_and_the_inside_is_not(kind: type[Tiny], norm_layers: Any):
    model, (x, y) = network(kind), batch()
    inside: list[torch.dtype] = []
    cast, linear = in_precision(model, Compute(precision="bf16")), torch.nn.functional.linear

    def noted(*given: Any) -> Tensor:
        found = linear(*given)
        inside.append(found.dtype)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", noted)
        found = perturb(Pgd(steps=2), cast, x, y, LINF, Draws(0), norm_layers=norm_layers)
    # In float64 the folded copy was compared with the network.
    assert {*inside} - {torch.float64} == {torch.bfloat16}
    assert found.x.dtype == torch.float32 and LINF.contains(x, found.x).all()
    logits = cast(x)
    logits.logsumexp(1).sum().backward()
    assert logits.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.usefixtures("able")
def test_weights_moved_inside_a_step_are_seen_at_once():
    model, (x, _) = network(), batch()
    cast = Cast(model, torch.bfloat16)
    before = cast(x).detach()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert not torch.allclose(cast(x), before, rtol=0.1)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("task", [NATURAL, ADVERSARIAL], ids=lambda task: task.name)
def test_a_step_in_half_precision_is_near_the_one_in_full(task: Task):
    half, full = learner(task, Compute(precision="bf16")), learner(task, Compute())
    for t in (1, 2):
        for who in (half, full):
            who.step(Batches(blobs(48).train, 12, Draws(0)).at(1, t), t)
    assert not same(half.live, full.live)
    for name, tensor in full.live.items():
        assert half.live[name].dtype == tensor.dtype
        # A bfloat16 has 8 bits; a pixel whose gradient changes sign moves by a whole step of the attack.
        assert torch.allclose(half.live[name], tensor, rtol=0, atol=0.05), name
    moments = [entry["momentum_buffer"] for entry in half.optimizer.state.values()]
    assert moments and all(tensor.dtype == torch.float32 for tensor in moments)
    assert [*half.state()] == [*full.state()]


@pytest.mark.usefixtures("able")
def test_a_training_in_half_precision_is_killed_and_resumed_to_the_bit(tmp_path: Path):
    asked = recipe(PAIR, BF16)
    whole = go(asked, tmp_path / "whole")

    with pytest.raises(KeyError):
        go(asked, tmp_path / "cut", progress=EndsAfter(5))
    go(asked, tmp_path / "cut", resume=True)
    assert remains(tmp_path / "cut") == remains(whole.folder)
    assert all(t.dtype != torch.bfloat16 for t in whole.weights()[0].values())


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
@pytest.mark.parametrize("kind", [Tiny, Unfoldable])
def test_a_loss_scale_changes_no_gradient_outside(scale: float, kind: type[Tiny], monkeypatch: Any):
    """Powers of two are exact in float32, so that where all is float32 nothing may differ by a bit."""
    (x, y), made = batch(), []
    for factor in (None, scale):
        model = network(kind)
        cast = Cast(model, torch.float16)
        assert cast.scale is not None
        cast.dtype = torch.bfloat16
        monkeypatch.setattr(torch, "autocast", lambda *a, **k: torch.enable_grad())
        if factor is None:
            cast.scale = None
        else:
            cast.scale.memory["precision.scale"].fill_(512 * factor)
        images = x.clone().requires_grad_()
        penalty = sum(p.square().sum() for p in model.parameters())
        loss = nn.functional.cross_entropy(cast(images), y) + 0.1 * penalty
        loss.backward()
        crafted = perturb(Pgd(steps=2), cast, x, y, LINF, Draws(0)).x
        made.append([images.grad, crafted, *(p.grad for p in model.parameters())])
    assert all(a is not None and torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_images_are_kept_further_from_overflow_than_weights():
    scale = Cast(network(), torch.float16).scale
    assert scale is not None
    assert scale.now(128, weights=True) == LARGEST
    assert scale.now(128, weights=False) == LARGEST / 128 / 16
    assert scale.now(100, weights=False) == 32, "a power of two"
    assert scale.now(10**6, weights=False) == 1


def test_an_overflow_leaves_the_step_out_and_halves_the_scale():
    who = learner(NATURAL, Compute(precision="fp16"))
    scale, calm = (who.memory[f"precision.{name}"] for name in ("scale", "calm"))
    who.optimizer.param_groups[0]["lr"] = 0.1
    before = snapshot(who.live)
    for bad in (torch.inf, torch.nan):
        for p in who.model.parameters():
            p.grad = torch.full_like(p, bad)
        who.optimizer.step()
    assert same(snapshot(who.live), before) and not who.optimizer.state
    assert (float(scale), int(calm)) == (LARGEST / 4, 0)
    for p in who.model.parameters():
        p.grad = torch.ones_like(p)
    who.optimizer.step()
    assert not same(snapshot(who.live), before) and int(calm) == 1
    calm.fill_(CALM - 1)
    who.optimizer.step()
    assert (float(scale), int(calm)) == (LARGEST / 2, 0)


def test_a_loss_scale_is_part_of_a_checkpoint():
    who, again = (learner(NATURAL, Compute(precision="fp16")) for _ in range(2))
    who.memory["precision.scale"].fill_(64)
    who.memory["precision.calm"].fill_(7)
    again.restore({name: tensor.clone() for name, tensor in who.state().items()})
    network = again.network
    assert isinstance(network, Cast) and network.scale is not None
    assert network.scale.now(8, weights=True) == 64 and int(again.memory["precision.calm"]) == 7


def test_gradients_that_overflow_without_a_scale_are_an_end():
    who = learner(NATURAL, Compute(precision="fp16"))
    who.memory["precision.scale"].fill_(1)
    for p in who.model.parameters():
        p.grad = torch.full_like(p, torch.inf)
    with pytest.raises(Diverged, match="even unscaled"):
        who.optimizer.step()


class Watched(Tiny):
    """Notes in what arithmetic it is asked."""

    asked: list[tuple[bool, bool]]

    def forward(self, x: Tensor) -> Tensor:
        type(self).asked.append((torch.is_autocast_enabled("cpu"), compute.ALLOWED in switched()))
        return super().forward(x if bool(x.sum() < 1e9) else x / 2)


def test_verdicts_are_in_float32_whatever_surrounds_them():
    Watched.asked = []
    split = blobs(6, 6).test
    with torch.autocast("cpu", dtype=torch.bfloat16), tensor_floats(True):
        half = evaluate(network(Watched), split, probes=["pgd-2@Linf:0.1"], check="skip")
    assert Watched.asked and set(Watched.asked) == {(False, False)}
    full = evaluate(network(Watched), split, probes=["pgd-2@Linf:0.1"], check="skip")
    assert half.predicted.keys() == full.predicted.keys() and len(full.predicted) == 2
    assert all((half.predicted[key] == full.predicted[key]).all() for key in full.predicted)


@pytest.mark.usefixtures("able")
def test_validations_of_a_training_in_half_precision_are_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Watched.asked, steps = [], list[tuple[bool, bool]]()

    measure = selection.Selector.measure

    def noted(*given: Any) -> Any:
        steps.extend(Watched.asked)
        Watched.asked.clear()
        found = measure(*given)
        assert Watched.asked and set(Watched.asked) == {(False, False)}
        Watched.asked.clear()
        return found

    monkeypatch.setattr(selection.Selector, "measure", noted)
    go(recipe(PAIR, BF16, ("epochs = 3", "epochs = 1")), tmp_path / "run", model=Watched)
    assert (True, False) in steps, "the steps before it were in half precision"


VERDICTS = """
import sys
from pathlib import Path
import torch
from allrounder.attacks import Pgd, perturb
from allrounder.recipe.compute import Compute
from allrounder.nn.amp import in_precision
from allrounder.rng import Draws
from allrounder.training.run import load
from allrounder.threats.threat import Threat
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, go, recipe
torch.set_num_threads(1)
half = ("epochs = 3", 'epochs = 8\\ncompute = { precision = "bf16" }')
run = go(recipe(PAIR, half), Path(sys.argv[1]))
model, split = load(run.folder, model=tiny), blobs(48, 300).test
x, y = split.fetch(torch.arange(300)), split.labels
found = {}
for precision in ("fp32", "bf16"):
    network = in_precision(model, Compute(precision=precision))
    crafted = perturb(Pgd(steps=20, step=0.1), network, x, y, Threat.read("Linf:0.2"), Draws(0)).x
    with torch.no_grad():
        found[precision] = model(crafted).argmax(1) == y
print(*(int(right.sum()) for right in found.values()), int((found["fp32"] != found["bf16"]).sum()))
"""


@pytest.mark.slow
def test_attacks_in_half_precision_find_what_those_in_full_find(tmp_path: Path):
    """Verdicts in float32 on images crafted either way: at most one in fifty differs, and neither way is
    stronger by more than one in a hundred."""
    environment = {**os.environ, compute.ISA: compute.OLDER, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", VERDICTS, str(tmp_path / "run")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert child.returncode == 0, child.stderr
    full, half, differ = map(int, child.stdout.split()[-3:])
    assert 0 < full < 300, "an attack that breaks all or nothing tells nothing"
    assert differ <= 6 and abs(full - half) <= 3
