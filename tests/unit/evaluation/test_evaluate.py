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
    outcome = evaluate(model, split, probes=probes, options=OPTIONS, **options)
    return {name: array.tolist() for name, array in outcome.predicted.items()}


def test_natural_predictions_are_the_networks_own_in_eval_mode():
    model = network()
    x = SPLIT.fetch(torch.arange(len(SPLIT)))
    outcome = evaluate(model, SPLIT)
    assert outcome.predicted["natural"].tolist() == model.eval()(x).argmax(1).tolist()
    assert outcome.label.tolist() == SPLIT.labels.tolist()
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
    assert {
        key: fact for key, fact in outcome.facts.items() if key not in ("rows", "network", "data")
    } == facts
    assert 0 < outcome.accuracy() < 1


def test_only_naturally_correct_images_are_attacked_and_the_others_are_not_robust():
    model, spy = network(), Spy()
    outcome = evaluate(model, SPLIT, probes=[Probe("spy", spy, LINF), PGD], options=OPTIONS)
    correct = np.flatnonzero(outcome.predicted["natural"] == outcome.label)
    assert 0 < len(correct) < len(SPLIT)
    assert sorted({row for rows in spy.rows for row in rows}) == correct.tolist()
    wrong = outcome.predicted["natural"] != outcome.label
    for name in outcome.predicted:
        assert np.array_equal(outcome.predicted[name][wrong], outcome.predicted["natural"][wrong])
    assert outcome.accuracy("pgd-5") < outcome.accuracy()


def test_an_attack_sees_the_images_and_labels_of_its_rows():
    spy = Spy()
    evaluate(network(), SPLIT, probes=[Probe("spy", spy, LINF)], options=OPTIONS)
    for rows, (x, y) in zip(spy.rows, spy.seen, strict=True):
        index = torch.tensor(rows)
        assert torch.equal(x, SPLIT.fetch(index))
        assert torch.equal(y, SPLIT.labels[index])


def test_every_pass_has_the_batch_size():
    spy, shapes, model = Spy(), list[tuple[int, ...]](), network()

    def note(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return model.eval()(x)

    outcome = evaluate(
        note,
        SPLIT,
        probes=[Probe("spy", spy, LINF)],
        options=EvalOptions(batch_size=BATCH_SIZE, check="skip"),
    )
    correct = int((outcome.predicted["natural"] == outcome.label).sum())
    batches = -(-len(SPLIT) // BATCH_SIZE) + -(-correct // BATCH_SIZE)
    assert correct % BATCH_SIZE and len(SPLIT) % BATCH_SIZE  # so that both ends were padded
    assert shapes == [(BATCH_SIZE, 1, 8, 8)] * batches
    assert {tuple(x.shape) for x, _ in spy.seen} == {(BATCH_SIZE, 1, 8, 8)}


def test_the_unmodified_network_decides_what_is_fooled(monkeypatch: pytest.MonkeyPatch):
    model, asked = network(), list[nn.Module]()
    logits = AttackRunner.logits

    def note(assessor: AttackRunner, x: Images) -> Any:
        assert isinstance(assessor.model, nn.Module) and not assessor.model.training
        asked.append(assessor.model)
        return logits(assessor, x)

    monkeypatch.setattr(AttackRunner, "logits", note)
    outcome = predictions(model, SPLIT, Probe("spy", Spy(), LINF))
    assert outcome["spy@Linf:0.1"] == outcome["natural"]  # it claimed to fool the network everywhere
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
        images_by_row = dict[int, Tensor]()
        perturb = runner.perturb

        def note(*arguments: Any, **options: Any) -> AttackResult:
            made = perturb(*arguments, **options)
            for row, image in zip(arguments[5].rows, made.x, strict=True):
                assert torch.equal(images_by_row.setdefault(row, image), image)  # padding repeats the same
            return made

        with monkeypatch.context() as patch:
            patch.setattr(runner, "perturb", note)
            evaluate(model, split, probes=[PGD], options=OPTIONS)
        return images_by_row

    whole, part = crafted(SPLIT), crafted(Subset(SPLIT, torch.arange(13)))
    assert part.keys() == {row for row in whole if row < 13}
    assert all(torch.equal(part[row], whole[row]) for row in part)


def test_probes_do_not_disturb_each_other():
    other = Probe.parse("pgd-5@L2:1")
    model = network()
    both, alone = predictions(model, SPLIT, other, PGD), predictions(model, SPLIT, PGD)
    assert both[str(PGD)] == alone[str(PGD)]


def test_random_starts_depend_on_the_seed():
    model, probe = network(), Probe("start", Pgd(steps=1, step=1e-6), Threat.parse("Linf:0.2"))
    assert predictions(model, SPLIT, probe, seed=1) == predictions(model, SPLIT, probe, seed=1)
    outcome = {seed: predictions(model, SPLIT, probe, seed=seed)[str(probe)] for seed in range(5)}
    assert len({tuple(row) for row in outcome.values()}) > 1


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
    outcome = evaluate(double, SPLIT, probes=[PGD, Probe("spy", spy, LINF)], options=OPTIONS)
    assert {x.dtype for x, _ in spy.seen} == {torch.float64}
    assert outcome.predicted["natural"].tolist() == predictions(single, SPLIT)["natural"]


def test_split_smaller_than_a_batch_is_padded():
    few = Subset(SPLIT, torch.arange(2))
    outcome = evaluate(network(), few, probes=[PGD])
    assert len(outcome) == 2
    assert set(outcome.predicted) == {"natural", str(PGD)}


def test_a_network_that_is_always_wrong_is_never_attacked():
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.eye(4)[3].expand(len(x), 4)

    spy = Spy()
    outcome = evaluate(Wrong(), SPLIT, probes=[Probe("spy", spy, LINF)], options=EvalOptions(check="skip"))
    assert outcome.accuracy() == outcome.accuracy("spy") == 0
    assert not spy.seen


def test_progress_rises_to_the_number_of_images():
    events = list[ProgressEvent]()
    outcome: Outcome = evaluate(network(), SPLIT, probes=[PGD], options=OPTIONS, progress=events.append)
    correct = int((outcome.predicted["natural"] == outcome.label).sum())
    fooled = correct - int((outcome.predicted[str(PGD)] == outcome.label).sum())
    for name, total, wrong in (("natural", 30, 30 - correct), (str(PGD), correct, fooled)):
        mine = [note.done for note in events if note.stage == name]
        assert mine == sorted(set(mine)) and mine[-1] == total
        assert [(note.total, note.fooled) for note in events if note.stage == name][-1] == (total, wrong)


def test_probe_round_trips_through_text():
    probe = Probe.parse("pgd-20@linf:8/255")
    assert (probe.name, str(probe), probe.to_toml()) == ("pgd-20", "pgd-20@Linf:8/255", "pgd-20@Linf:8/255")
    assert probe.attack == Pgd(steps=20)
    assert Probe.parse(probe) is probe
    assert Probe.parse(probe.to_toml()) == probe


@pytest.mark.parametrize(
    ("raw", "message"),
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
def test_invalid_probe_is_refused(raw: object, message: str):
    with pytest.raises(ValueError, match=message):
        Probe.parse(raw)
