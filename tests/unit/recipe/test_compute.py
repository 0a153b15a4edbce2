"""The precision of a training: the machine is tested before a training begins."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from allrounder.distributed import World
from allrounder.errors import RecipeError
from allrounder.recipe.compute import Compute
from allrounder.recipe.recipe import Recipe
from allrounder.system import probe
from tests.support.trainings import PAIR, go, recipe

CPU = torch.device("cpu")
BF16 = ("epochs = 3", 'epochs = 3\ncompute = { precision = "bf16" }')


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let the child run another program; the result of the test of this machine is dropped afterwards."""
    probe.precision_failure.cache_clear()
    monkeypatch.delenv(probe.ISA_VARIABLE, raising=False)
    yield lambda program: monkeypatch.setattr(probe, "PROBE_SCRIPT", program)
    probe.precision_failure.cache_clear()


def test_a_child_that_dies_is_a_refusal_with_signal_and_remedy(pretend: Callable[[str], None]):
    dies = "import os, signal\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)"
    pretend(dies)
    with pytest.raises(RecipeError) as refused:
        Compute(precision="bf16").check_device(CPU)
    message = str(refused.value)
    assert message.startswith("compute.precision: got bf16, but a small test network on cpu was killed by")
    assert signal.SIGILL.name in message and "set compute.precision to fp32" in message
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE" in message, "with it the child lives, so it is offered"


def test_a_remedy_that_does_not_help_is_not_offered(pretend: Callable[[str], None]):
    pretend("import sys; sys.exit('no such kernel')")
    with pytest.raises(RecipeError, match=r"failed: no such kernel; .* set compute.precision to fp32$"):
        Compute(precision="bf16").check_device(CPU)


def test_a_child_that_hangs_is_a_refusal(pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch):
    pretend("import time; time.sleep(60)")
    monkeypatch.setattr(probe, "TIMEOUT_SECONDS", 0.3)
    with pytest.raises(RecipeError, match="did not end within 0 seconds"):
        Compute(precision="bf16").check_device(CPU)


def test_the_machine_is_asked_once(pretend: Callable[[str], None], tmp_path: Path):
    counted = f"open({str(tmp_path / 'calls')!r}, 'a').write('x')"
    pretend(counted)
    for _ in range(3):
        assert Compute(precision="bf16").check_device(CPU) == []
    assert (tmp_path / "calls").read_text() == "x"


def test_a_refused_training_leaves_no_folder(pretend: Callable[[str], None], tmp_path: Path):
    pretend("import sys; sys.exit('no')")
    with pytest.raises(RecipeError, match=r"compute\.precision"):
        go(recipe(PAIR, BF16), tmp_path / "run", world=World(0, 1, CPU))
    assert list(tmp_path.iterdir()) == []


def test_fp16_is_refused():
    """It would need a loss scale, which there is not."""
    with pytest.raises(RecipeError, match=r"compute\.precision: .*fp32.*bf16.*fp16"):
        Recipe.load("embedded/at-linf", ["compute.precision=fp16"])


def test_a_setting_without_effect_gives_a_warning():
    assert Compute(tf32=True).check_device(CPU) == ["compute.tf32 has no effect on cpu"]
    assert Compute().check_device(CPU) == Compute(tf32=True).check_device(torch.device("cuda")) == []


def test_the_choice_is_in_the_fingerprint_and_its_absence_is_not():
    usual = Recipe.load("embedded/at-linf")
    assert usual.fingerprint() == Recipe.load("embedded/at-linf", ["compute.precision=fp32"]).fingerprint()
    others = [Recipe.load("embedded/at-linf", [f"compute.{it}"]) for it in ("precision=bf16", "tf32=true")]
    assert len({usual.fingerprint(), *(other.fingerprint() for other in others)}) == 3
    assert all(Recipe.loads(other.dumps()) == other for other in others)
    assert "compute" not in [line.split(" = ")[0] for line in usual.dumps().splitlines()]


def test_fast_convolutions_are_part_of_the_fingerprint_and_their_absence_is_not():
    plain, fast = recipe(), recipe(PAIR, ("seed", "compute = { fast_conv = true }\nseed"))
    assert plain.fingerprint() != fast.fingerprint()
    assert "fast_conv" not in plain.dumps() and "fast_conv = true" in fast.dumps()
    assert Recipe.loads(fast.dumps()) == fast


def test_fast_convolutions_need_float32_and_a_cpu():
    with pytest.raises(RecipeError, match=r"compute\.fast_conv: needs precision = fp32, got bf16"):
        recipe(PAIR, ("seed", 'compute = { fast_conv = true, precision = "bf16" }\nseed'))
    assert Compute(fast_conv=True).check_device(CPU) == []
    assert Compute(fast_conv=True).check_device(torch.device("cuda")) == [
        "compute.fast_conv has no effect on cuda"
    ]
