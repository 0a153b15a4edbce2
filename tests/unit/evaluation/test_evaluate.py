from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Attack, Pgd
from allrounder.attacks.base import AttackResult
from allrounder.data.base import Split, Subset
from allrounder.evaluation import runner
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import AttackRunner
from allrounder.report.outcome import Outcome
from allrounder.rng import Rng
from allrounder.system.progress import ProgressEvent
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes
from tests.support.networks import Tiny, blobs

SPLIT = blobs(train=3, test=30).test
LINF = Threat.parse("Linf:0.1")
PGD = Probe.parse("pgd-5@Linf:0.1")
BATCH_SIZE = 7
OPTIONS = EvalOptions(batch_size=BATCH_SIZE)
MODES = (
    "training-mode: 4 modules of the network are in training mode, expected eval mode; evaluation and "
    "attacks switch modes and restore them; other code must call model.eval()"
)


def network(seed: int = 0) -> nn.Module:
    with Rng(seed).fold_in("network").seed_global():
        return Tiny()


@final
@dataclass(frozen=True)
class Spy(Attack):
    """Notes what it is shown, claims success, and changes nothing."""

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]], repr=False)
    rows: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]], repr=False)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        self.seen.append((x.clone(), y.clone()))
        assert rng.rows is not None
        self.rows.append(rng.rows)
        return AttackResult(x=x, passes=Passes(), fooled=torch.ones_like(y, dtype=torch.bool))


def predictions(model: nn.Module, split: Split, *probes: Probe, **options: Any) -> dict[str, list[int]]:
    found = evaluate(model, split, probes=probes, options=OPTIONS, **options)
    return {name: array.tolist() for name, array in found.predicted.items()}


def test_natural_predictions_are_the_networks_own_in_eval_mode():
    model = network()
    x = SPLIT.fetch(torch.arange(len(SPLIT)))
    found = evaluate(model, SPLIT)
    assert found.predicted["natural"].tolist() == model.eval()(x).argmax(1).tolist()
    assert found.label.tolist() == SPLIT.labels.tolist()
    facts = {"seed": 0, "batch_size": 64, "threads": torch.get_num_threads(), "images": 30, "budget": "full"}
    facts |= {
        "stages": {},
        "settings": {},
        "white_box": {},
        "questions": [],
        "findings": [MODES],
        "flags": [],
        "classes": 3,
        "attacks": {},
    }
    assert {key: fact for key, fact in found.facts.items() if key not in ("rows", "network", "data")} == facts
    assert 0 < found.accuracy() < 1


def test_only_naturally_correct_images_are_attacked_and_the_others_are_not_robust():
    model, spy = network(), Spy()
    found = evaluate(model, SPLIT, probes=[Probe("spy", spy, LINF), PGD], options=OPTIONS)
    correct = np.flatnonzero(found.predicted["natural"] == found.label)
    assert 0 < len(correct) < len(SPLIT)
    assert sorted({row for rows in spy.rows for row in rows}) == correct.tolist()
    wrong = found.predicted["natural"] != found.label
    for name in found.predicted:
        assert np.array_equal(found.predicted[name][wrong], found.predicted["natural"][wrong])
    assert found.accuracy("pgd-5") < found.accuracy()


def test_an_attack_sees_the_images_and_labels_of_its_rows():
    spy = Spy()
    evaluate(network(), SPLIT, probes=[Probe("spy", spy, LINF)], options=OPTIONS)
    for rows, (x, y) in zip(spy.rows, spy.seen, strict=True):
        index = torch.tensor(rows)
        assert torch.equal(x, SPLIT.fetch(index))
        assert torch.equal(y, SPLIT.labels[index])


def test_every_pass_has_the_shape_of_one_lane():
    spy, shapes, model = Spy(), list[tuple[int, ...]](), network()

    def note(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return model.eval()(x)

    found = evaluate(
        note,
        SPLIT,
        probes=[Probe("spy", spy, LINF)],
        options=EvalOptions(batch_size=BATCH_SIZE, check="skip"),
    )
    standing = int((found.predicted["natural"] == found.label).sum())
    batches = -(-len(SPLIT) // BATCH_SIZE) + -(-standing // BATCH_SIZE)
    assert standing % BATCH_SIZE and len(SPLIT) % BATCH_SIZE  # so that both ends were padded
    assert shapes == [(BATCH_SIZE, 1, 8, 8)] * batches
    assert {tuple(x.shape) for x, _ in spy.seen} == {(BATCH_SIZE, 1, 8, 8)}


def test_the_verdict_is_the_plain_networks_and_not_the_attacks(monkeypatch: pytest.MonkeyPatch):
    model, asked = network(), list[nn.Module]()
    logits = AttackRunner.logits

    def note(assessor: AttackRunner, x: Images) -> Any:
        assert isinstance(assessor.model, nn.Module) and not assessor.model.training
        asked.append(assessor.model)
        return logits(assessor, x)

    monkeypatch.setattr(AttackRunner, "logits", note)
    found = predictions(model, SPLIT, Probe("spy", Spy(), LINF))
    assert found["spy@Linf:0.1"] == found["natural"]  # it claimed to fool the network everywhere
    assert all(by is model for by in asked)


@pytest.mark.parametrize("start", ["zero", "random"])
def test_neighbours_and_padding_change_no_prediction(start: str):
    # Without a random start the images may change places altogether.
    probe = Probe("pgd", Pgd(steps=3, start=start), LINF)  # pyright: ignore[reportArgumentType]
    model = network()
    whole = predictions(model, SPLIT, probe)
    order = torch.arange(len(SPLIT)).flip(0) if start == "zero" else torch.arange(11)
    part = predictions(model, Subset(SPLIT, order), probe)
    for name in whole:
        assert part[name] == [whole[name][row] for row in order.tolist()]


def test_crafted_images_depend_on_nothing_but_their_row(monkeypatch: pytest.MonkeyPatch):
    model = network()

    def crafted(split: Split) -> dict[int, Tensor]:
        """By row, bit for bit."""
        found = dict[int, Tensor]()
        perturb = runner.perturb

        def note(*arguments: Any, **options: Any) -> AttackResult:
            made = perturb(*arguments, **options)
            for row, image in zip(arguments[5].rows, made.x, strict=True):
                assert torch.equal(found.setdefault(row, image), image)  # padding repeats the same
            return made

        with monkeypatch.context() as patch:
            patch.setattr(runner, "perturb", note)
            evaluate(model, split, probes=[PGD], options=OPTIONS)
        return found

    whole, part = crafted(SPLIT), crafted(Subset(SPLIT, torch.arange(13)))
    assert part.keys() == {row for row in whole if row < 13}
    assert all(torch.equal(part[row], whole[row]) for row in part)


def test_probes_do_not_disturb_each_other():
    other = Probe.parse("pgd-5@L2:1")
    model = network()
    both, alone = predictions(model, SPLIT, other, PGD), predictions(model, SPLIT, PGD)
    assert both[str(PGD)] == alone[str(PGD)]


def test_the_same_seed_gives_the_same_and_another_draws_anew():
    model, probe = network(), Probe("start", Pgd(steps=1, step=1e-6), Threat.parse("Linf:0.2"))
    assert predictions(model, SPLIT, probe, seed=1) == predictions(model, SPLIT, probe, seed=1)
    found = {seed: predictions(model, SPLIT, probe, seed=seed)[str(probe)] for seed in range(5)}
    assert len({tuple(row) for row in found.values()}) > 1


class Moody(Tiny):
    """Draws random numbers even in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 3)


@pytest.mark.parametrize("kind", [Tiny, Moody])
def test_no_generator_is_touched_and_nothing_depends_on_one(kind: type[nn.Module]):
    with Rng(0).seed_global():
        model = kind()
    before = torch.get_rng_state(), str(np.random.get_state())
    first = predictions(model, SPLIT, PGD)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]
    torch.rand(3)
    assert predictions(model, SPLIT, PGD) == first


@final
@dataclass(frozen=True)
class Broken(Attack):
    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        raise RuntimeError("broken")


@pytest.mark.parametrize("attack", [Pgd(steps=1), Broken()])
def test_the_network_is_left_as_it_was(attack: Attack):
    model = network().train()
    model.get_submodule("bn").eval()
    model.get_submodule("linear").requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    if isinstance(attack, Broken):
        with pytest.raises(RuntimeError, match="broken"):
            evaluate(model, SPLIT, probes=[Probe("broken", attack, LINF)])
    else:
        evaluate(model, SPLIT, probes=[Probe("pgd", attack, LINF)])
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert torch.is_grad_enabled()


def test_a_network_in_double_precision_is_evaluated_in_it():
    single, double = network(), network().double()
    spy = Spy()
    found = evaluate(double, SPLIT, probes=[PGD, Probe("spy", spy, LINF)], options=OPTIONS)
    assert {x.dtype for x, _ in spy.seen} == {torch.float64}
    assert found.predicted["natural"].tolist() == predictions(single, SPLIT)["natural"]


def test_a_split_shorter_than_a_lane_is_padded():
    few = Subset(SPLIT, torch.arange(2))
    found = evaluate(network(), few, probes=[PGD])
    assert len(found) == 2
    assert set(found.predicted) == {"natural", str(PGD)}


def test_a_network_that_is_always_wrong_is_never_attacked():
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.eye(4)[3].expand(len(x), 4)

    spy = Spy()
    found = evaluate(Wrong(), SPLIT, probes=[Probe("spy", spy, LINF)], options=EvalOptions(check="skip"))
    assert found.accuracy() == found.accuracy("spy") == 0
    assert not spy.seen


def test_progress_rises_to_the_number_of_images():
    told = list[ProgressEvent]()
    found: Outcome = evaluate(network(), SPLIT, probes=[PGD], options=OPTIONS, progress=told.append)
    standing = int((found.predicted["natural"] == found.label).sum())
    broken = standing - int((found.predicted[str(PGD)] == found.label).sum())
    for name, total, wrong in (("natural", 30, 30 - standing), (str(PGD), standing, broken)):
        mine = [note.done for note in told if note.stage == name]
        assert mine == sorted(set(mine)) and mine[-1] == total
        assert [(note.total, note.fooled) for note in told if note.stage == name][-1] == (total, wrong)


def test_a_probe_is_written_as_it_is_read():
    probe = Probe.parse("pgd-20@linf:8/255")
    assert (probe.name, str(probe), probe.to_toml()) == ("pgd-20", "pgd-20@Linf:8/255", "pgd-20@Linf:8/255")
    assert probe.attack == Pgd(steps=20)
    assert Probe.parse(probe) is probe
    assert Probe.parse(probe.to_toml()) == probe


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("pgd-20", "expected an attack and a threat, such as .*, got 'pgd-20'"),
        (20, "expected an attack and a threat, such as .*, got 20"),
        (None, "expected an attack and a threat"),
        ("natural", "expected an attack and a threat"),
        ("@Linf:8/255", "unknown attack ''"),
        ("pdg-20@Linf:8/255", "unknown attack 'pdg-20' .*did you mean \"pgd\""),
        ("pgd-0@Linf:8/255", "unknown attack 'pgd-0'"),
        ("pgd-20@", "expected one text NORM:BUDGET"),
        ("pgd-20@Linf", "expected one text NORM:BUDGET"),
        ("pgd-20@Linf:8/0", "divides by zero"),
        ("pgd-20@Linf:-1", "negative"),
        ("pgd-20@L3:1", "unknown norm 'L3'"),
        ("pgd-20@Linf:8/255@L2:1", "expected one text NORM:BUDGET"),
    ],
)
def test_what_is_no_probe_is_refused(raw: object, said: str):
    with pytest.raises(ValueError, match=said):
        Probe.parse(raw)
