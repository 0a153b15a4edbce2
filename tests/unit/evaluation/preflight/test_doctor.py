from __future__ import annotations

import dataclasses
import random
import re
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from allrounder.evaluation.evaluate import evaluate
from allrounder.evaluation.preflight import CHECKS, Case, Diagnosis, Finding, PreflightError, doctor
from allrounder.evaluation.preflight.inputs import check_device_and_dtype
from allrounder.models.layers import Normalise
from allrounder.models.normalisation import NORMALISATION_CONSTANTS
from allrounder.models.small_cnn import SmallCnn

DRAWS = random.Random(0)
"""Seeded: two draws that happen to be almost equal would hide that a network is random."""


def levels(classes: int = 5, n: int = 30, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Images as bright as their class, with noise."""
    y = torch.arange(n) % classes
    noise = torch.rand(n, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    return (torch.linspace(0.1, 0.8, classes)[y].view(-1, 1, 1, 1) + 0.1 * noise).clamp(0, 1), y


class Levels(nn.Module):
    """Right about the images above, if they reach it in the range that it was made for."""

    centres: Tensor

    def __init__(self, classes: int = 5, channels: int = 3, prepare: nn.Module | None = None) -> None:
        super().__init__()
        flat = (torch.linspace(0.1, 0.8, classes) + 0.05).view(-1, 1, 1, 1).expand(-1, channels, 8, 8)
        centres = flat if prepare is None else prepare(flat)
        self.register_buffer("centres", centres.mean((1, 2, 3)))
        self.sharpness = nn.Parameter(10 / (self.centres[-1] - self.centres[0]) ** 2)

    def forward(self, x: Tensor) -> Tensor:
        return -self.sharpness * (x.mean((1, 2, 3))[:, None] - self.centres) ** 2


class Then(nn.Module):
    """Levels, and something done to images before or to logits after."""

    def __init__(
        self,
        after: Callable[[Tensor], Tensor] = lambda z: z,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        classes: int = 5,
    ) -> None:
        super().__init__()
        self.levels, self.after, self.before = Levels(classes), after, before

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.levels(self.before(x)))


def shifted(x: Tensor) -> Tensor:
    return x.sub_(0.1)


def noisy(z: Tensor) -> Tensor:
    return z + 0.1 * torch.randn_like(z)


def own_noise() -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    return lambda z: z + 0.1 * torch.randn(z.shape, generator=generator)


def batch_norm(x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, None, None, training=True)


class Rounded(torch.autograd.Function):
    """Rounding that hands back no gradient but zero."""

    @staticmethod
    def forward(ctx, x):  # pyright: ignore
        return (x * 255).round() / 255

    @staticmethod
    def backward(ctx, *g):  # pyright: ignore
        return torch.zeros_like(g[0])


def findings_by_kind(model, x: Tensor, y: Tensor, classes: int | None = None) -> dict[str, Finding]:
    """The findings by kind."""
    diagnosis = doctor(model, x, y, classes=classes)
    assert len({finding.kind for finding in diagnosis.findings}) == len(diagnosis.findings)
    return {finding.kind: finding for finding in diagnosis.findings}


X, Y = levels()


def test_a_healthy_small_cnn_has_no_findings():
    torch.manual_seed(0)
    model = SmallCnn(width=4).build(10, (3, 32, 32)).eval()
    x = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = model(x).argmax(1)
    diagnosis = doctor(model, x, y, classes=10)
    assert diagnosis == Diagnosis((), classes=10) and diagnosis.ok
    assert diagnosis.lines() == ["no faults found in the network, the images and the labels"]
    diagnosis.raise_if_bad()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 30, 200])
@pytest.mark.parametrize("channels", [1, 3])
def test_healthy_networks_of_few_classes_have_no_findings(classes: int, n: int, channels: int):
    x, y = levels(classes, n, channels)
    model = Levels(classes, channels).eval()
    assert doctor(model, x, y).findings == ()
    assert doctor(model, x, y.int(), classes=classes).findings == ()
    assert doctor(lambda images: model(images), x, y).findings == ()


@pytest.mark.parametrize(
    ("x", "y", "kind", "message"),
    [
        (X[0], Y, "shape", r"shape \(3, 8, 8\), expected \(n, channels, height, width\); .* x\[None\]"),
        (X.flatten(1), Y, "shape", r"shape \(30, 192\), expected .*; reshape them"),
        (X[:0], Y[:0], "shape", r"shape \(0, 3, 8, 8\), .* give at least one image"),
        (X.permute(0, 2, 3, 1), Y, "shape", r"channels seem to come last: use x.permute\(0, 3, 1, 2\)"),
        ((X * 255).byte(), Y, "dtype", r"torch.uint8, expected float32 or float64; use x.float\(\) / 255"),
        (X.half(), Y, "dtype", r"the images are torch.float16, .*; use x.float\(\)$"),
        (torch.where(X > 0.5, float("nan"), X), Y, "finite", r"values of the images are NaN or infinite"),
        (X, Y.float(), "labels", r"torch.float32 of shape \(30,\), expected integers of shape \(30,\)"),
        (X, Y[:-1], "labels", r"torch.int64 of shape \(29,\), expected integers of shape \(30,\)"),
        (X, nn.functional.one_hot(Y), "labels", r"shape \(30, 5\), .*; use y.argmax\(1\)"),
        (X, Y > 2, "labels", r"torch.bool of shape"),
        (X, Y - 1, "labels", r"smallest label is -1, expected 0 or more; drop images"),
        (X, Y + 1, "labels", r"go up to 5, expected at most 4 with 5 classes; .*start at 1: use y - 1"),
        (X, Y + 3, "labels", r"go up to 7, expected at most 4 with 5 classes; check both"),
        (X * 255, Y, "range", r"lie in \[25\.\d+, 2\d\d\.\d\], expected \[0, 1\]; divide them by 255"),
        (X * 2 - 1, Y, "range", r"lie in \[-0\.\d+, .*they seem normalised: put the normalisation into the "),
    ],
)
def test_images_and_labels_of_the_wrong_form_are_refused(x: Tensor, y: Tensor, kind: str, message: str):
    model = Levels().eval()
    for network in (model, lambda images: model(images)):
        diagnosis = doctor(network, x, y, classes=5)
        assert kind in [finding.kind for finding in diagnosis.findings if finding.severe]
        with pytest.raises(PreflightError, match=message):
            diagnosis.raise_if_bad()


def test_images_divided_twice_are_a_note():
    finding = findings_by_kind(Levels().eval(), X / 255, Y)["range"]
    assert not finding.severe and "divided by 255 twice" in finding.message


@pytest.mark.parametrize(
    ("network", "kind", "message"),
    [
        (
            Then(lambda z: z.softmax(1)),
            "probabilities",
            r"returns probabilities .*before the softmax, or .*log",
        ),
        (Then(lambda z: z.argmax(1)), "shape", r"torch.int64 of shape \(30,\), .*before any argmax"),
        (Then(lambda z: z[:, 0]), "shape", r"shape \(30,\), .* return torch.stack\(\[-z, z\], 1\)"),
        (Then(lambda z: z[:, :1]), "shape", r"shape \(30, 1\), .* return torch.stack"),
        (Then(lambda z: z.mean(0, keepdim=True)), "shape", r"shape \(1, 5\), .*pooling over images"),
        (lambda x: (Levels()(x), x), "shape", r"returns a tuple, expected one tensor of logits"),
        (
            Then(lambda z: z / 0),
            "finite",
            r"logits of 30 of 30 images hold NaN or infinity, expected finite logits",
        ),
        (Then(lambda z: z[:, :4]), "classes", r"has 4 classes, expected 5; use the network"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(7, 5)),
            "forward",
            r"fails on images of shape \(30, 3, 8, 8\):",
        ),
        (Then().half(), "dtype", r"network is torch.float16, .*; use model.float\(\)"),
        (Then().bfloat16(), "dtype", r"network is torch.bfloat16"),
        (Then(before=batch_norm), "neighbours", r"with the rest of its batch, expected no change; put batch"),
        (Then(before=shifted), "in-place", r"overwrites the images it is given"),
        (Then(before=torch.detach), "no-gradient", r"no gradient reaches the images; remove .*\(square\)"),
        (Then(before=Rounded.apply), "zero-gradient", r"zero for 30 of 30 images \(of the margin; .*: 30\)"),
        (Then(lambda z: z - (z[:, :1] - z[:, :1]).sqrt()), "finite", r"gradients of 30 of 30 images are not"),
    ],
)
def test_severe_problems_of_networks_are_refused(network, kind: str, message: str):
    model = network.eval() if isinstance(network, nn.Module) else network
    # Only a module says what type it is.
    for one in [model] if kind == "dtype" else [model, lambda images: model(images)]:
        diagnosis = doctor(one, X, Y, classes=5)
        assert kind in [finding.kind for finding in diagnosis.findings if finding.severe]
        with pytest.raises(PreflightError, match=message) as error:
            diagnosis.raise_if_bad()
        assert isinstance(error.value, ValueError) and f"\n- {kind}: " in str(error.value)


@pytest.mark.parametrize(
    ("network", "classes", "kind", "message"),
    [
        (Then(noisy), 5, "random", r"passes over the same images differ by .* average.*EOT"),
        (Then(own_noise()), 5, "random", r"passes over the same images differ by"),
        (Then(lambda z: z + 0.1 * DRAWS.random()), 5, "random", r"passes over the same images differ by"),
        (Then(lambda z: 1e4 * z), 5, "zero-gradient", r"cross-entropy is zero for \d+ of 30 .*apgd-dlr"),
        (Then(lambda z: z.log_softmax(1)), 5, "log-probabilities", r"returns log-probabilities .*is fine"),
        (Then(torch.Tensor.half), 5, "dtype", r"logits are torch.float16, so predictions are rounded"),
        (Then(lambda z: z), 4, "labels", r"go up to 4, expected at most 3"),
        (Then(classes=7), 5, "classes", r"has 7 classes, expected 5; .* use logits\[:, :5\]"),
        (Then(lambda z: z * 0 + z[:1] * 0 + 1), None, "accuracy", r"right about 20% of 30 .* predicts 1 of"),
    ],
)
def test_mild_problems_are_notes(network: nn.Module, classes: int | None, kind: str, message: str):
    finding = findings_by_kind(network.eval(), X, Y, classes)[kind]
    assert finding.severe == (kind == "labels")
    assert re.search(message, finding.message)


def test_log_probabilities_are_evaluated_like_logits():
    outcomes = [
        evaluate(Then(after).eval(), X, Y, threats=["Linf:0.1"], attacks=["pgd-5", "cw-5", "apgd-dlr"])
        for after in (lambda z: z, lambda z: z.log_softmax(1), lambda z: _log_of_probabilities(z.softmax(1)))
    ]
    for outcome in outcomes:
        assert outcome.accuracy() == 1
        for attack in ("pgd-5", "cw-5", "apgd-dlr"):
            expected = outcomes[0].accuracy(attack)
            assert expected < 1 and outcome.accuracy(attack) == pytest.approx(expected, abs=0.05)


def _log_of_probabilities(p: Tensor) -> Tensor:
    """What the message about probabilities advises."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def times(factor: float) -> nn.Module:
    return Normalise([0.0] * 3, [1 / factor] * 3)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            Normalise(*NORMALISATION_CONSTANTS["CIFAR-10"]),
            r"normalised with the constants of CIFAR.*Normalise\(mean, std\) in",
        ),
        (
            Normalise(*NORMALISATION_CONSTANTS["ImageNet"]),
            r"normalised with the constants of .*Normalise\(mean, std\) in front",
        ),
        (
            Normalise([0.5] * 3, [0.5] * 3),
            r"normalised with one half \(mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5\)",
        ),
        (times(255), r"multiplied by 255: it expects 0 to 255, so multiply by 255 in its first layer"),
    ],
)
def test_a_missing_normalisation_is_recognised(prepare: nn.Module, message: str):
    bare = Levels(prepare=prepare).eval()
    finding = findings_by_kind(bare, X, Y)["normalisation"]
    assert finding.severe and re.search(message, finding.message)
    assert re.match(r"the network is right about \d+% of the images, and \d+% of them ", finding.message)
    assert doctor(nn.Sequential(prepare, bare).eval(), X, Y).findings == ()


def test_a_missing_normalisation_by_the_datas_own_numbers_is_recognised():
    dark = X / 10
    own = Normalise(dark.mean((0, 2, 3)).tolist(), dark.std((0, 2, 3)).tolist())
    bare = Levels()
    bare.centres.copy_(torch.stack([own(dark[k == Y]).mean() for k in range(5)]))
    finding = findings_by_kind(bare.eval(), dark, Y)["normalisation"]
    assert finding.severe and re.search(r"their own mean and deviation \(mean 0\.0\d+, ", finding.message)


@pytest.mark.parametrize("name", ["CIFAR-10", "ImageNet"])
def test_a_normalisation_applied_twice_is_recognised(name: str):
    normalise = Normalise(*NORMALISATION_CONSTANTS[name])
    bare = Levels(prepare=normalise)
    inside = findings_by_kind(nn.Sequential(normalise, normalise, bare).eval(), X, Y)["normalisation"]
    assert inside.severe and re.search("undone by .*: it is applied twice, remove one", inside.message)
    outside = findings_by_kind(nn.Sequential(normalise, bare).eval(), normalise(X), Y)
    assert outside["range"].severe and "applied twice" in outside["normalisation"].message


def test_grey_images_are_tried_with_the_constants_of_grey_data():
    x, y = levels(channels=1)
    bare = Levels(channels=1, prepare=Normalise(*NORMALISATION_CONSTANTS["MNIST"])).eval()
    assert re.search(
        r"of MNIST \(mean 0.1307; std 0.3081\)", findings_by_kind(bare, x, y)["normalisation"].message
    )


def test_untrained_network_has_no_normalisation_finding():
    for seed in range(5):
        torch.manual_seed(seed)
        model = SmallCnn(width=4).build(5, (3, 8, 8)).eval()
        assert findings_by_kind(model, X[:10], Y[:10]).keys() <= {"accuracy"}


def test_training_mode_is_a_note_and_is_restored():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5), Levels())
    model[0].eval()
    finding = findings_by_kind(model, X, Y)["training-mode"]
    assert not finding.severe and re.match("3 modules of the network are in training mode", finding.message)
    assert [part.training for part in model.modules()] == [True, False, True, True]


def test_a_function_around_a_network_in_training_mode_is_refused():
    model = nn.Sequential(nn.BatchNorm2d(3), Levels())
    assert findings_by_kind(lambda x: model(x), X, Y)["neighbours"].severe
    assert findings_by_kind(lambda x: nn.Sequential(nn.Dropout(0.5), Levels())(x), X, Y).keys() == {"random"}


def test_another_dtype_or_device_is_a_note():
    finding = findings_by_kind(Levels().double().eval(), X, Y)["dtype"]
    assert not finding.severe
    assert "torch.float32 on cpu, the network is torch.float64 on cpu; evaluation converts" in finding.message
    case = Case(Levels().to("meta"), X, Y, None, 0)
    assert check_device_and_dtype(case) == Finding("device", False, check_device_and_dtype(case).message)  # pyright: ignore
    assert "on cpu, the network is torch.float32 on meta" in check_device_and_dtype(case).message  # pyright: ignore


def test_a_network_for_one_size_of_batch_is_refused():
    findings = doctor(Then(before=lambda x: x.view(30, 3, 8, 8)).eval(), X, Y).findings
    assert re.search(r"fails on images of shape \(60, 3, 8, 8\): RuntimeError", findings[0].message)


def by_position(z: Tensor) -> Tensor:
    """The last rows are rounded differently, as by linear algebra libraries on some processors."""
    return torch.cat([z[:6], z[6:] * (1 + 1e-6)])


@pytest.mark.parametrize(
    "size, kinds", [(None, set()), (1, set()), (6, set()), (8, {"position"}), (64, {"position"})]
)
def test_bits_that_depend_on_the_position_in_a_batch_are_a_note(size: int | None, kinds: set[str]):
    diagnosis = doctor(Then(by_position).eval(), X, Y, batch_size=size)
    assert {finding.kind for finding in diagnosis.findings} == kinds and diagnosis.ok
    assert doctor(Then().eval(), X, Y, batch_size=size).findings == ()
    assert doctor(Then(noisy).eval(), X, Y, batch_size=size).lines()[0].startswith("note: random")


class Meddler(nn.Module):
    """Does all that a network should not do while it answers."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.bn, self.levels = nn.BatchNorm2d(3), Levels()

    def forward(self, x: Tensor) -> Tensor:
        self.train()
        self.count += 1
        return self.levels(self.bn(x)) + torch.randn(())


@pytest.mark.parametrize("broken", [False, True])
def test_everything_is_left_as_it_was(broken: bool):
    model = Meddler()
    model.bn.eval()
    model.bn.bias.requires_grad_(False)
    if broken:
        model.levels.forward = lambda x: 1 / 0  # pyright: ignore
    x, before = X.clone().requires_grad_(), {name: t.clone() for name, t in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert not doctor(model, x, Y).ok
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == [True, False, True]
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True]
    assert all(p.grad is None for p in model.parameters()) and x.grad is None
    assert torch.equal(x, X) and torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_doctor_works_without_gradients(mode: Callable[[], torch.no_grad]):
    model = Levels().eval()
    with mode():
        assert doctor(model, X + 0, Y + 0).findings == ()


def test_network_sees_few_images_spread_over_all():
    x, y = levels(n=500)
    order = y.argsort()
    seen: list[int] = []
    model = Levels().eval()

    def counted(images: Tensor) -> Tensor:
        seen.append(len(images))
        return model(images)

    assert doctor(counted, x[order], y[order]).findings == ()
    assert max(seen) == 126
    assert findings_by_kind(model, torch.cat([x, x[:1] * 300]), torch.cat([y, y[:1]])).keys() == {"range"}


def test_findings_are_printed_the_severe_ones_first():
    diagnosis = Diagnosis(
        (Finding("random", False, "a"), Finding("range", True, "b"), Finding("x", True, "c"))
    )
    assert not diagnosis.ok
    assert diagnosis.lines() == ["severe: range: b", "severe: x: c", "note: random: a"]
    with pytest.raises(PreflightError) as error:
        diagnosis.raise_if_bad()
    assert str(error.value) == "an evaluation would be meaningless:\n- range: b\n- x: c"
    mild = Diagnosis(diagnosis.findings[:1])
    mild.raise_if_bad()
    assert mild.ok
    with pytest.raises(dataclasses.FrozenInstanceError):
        mild.findings = ()  # pyright: ignore


def test_a_new_check_is_one_function_in_the_table(monkeypatch: pytest.MonkeyPatch):
    def dark(case: Case) -> Finding | None:
        return Finding("dark", False, "too dark") if float(case.x.mean()) < 0.9 else None

    monkeypatch.setattr(sys.modules["allrounder.evaluation.preflight"], "CHECKS", (*CHECKS, (dark,)))
    assert doctor(Levels().eval(), X, Y).lines() == ["note: dark: too dark"]
