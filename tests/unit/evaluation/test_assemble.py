"""What an evaluation tells beside its numbers, and the images it keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from allrounder.attacks import Apgd, AutoAttack, CustomLoss, Fab, Pgd, Square
from allrounder.data.base import Split
from allrounder.evaluation import runner
from allrounder.evaluation.assemble import describe_budgets
from allrounder.evaluation.evaluate import BUDGETS
from allrounder.evaluation.preflight import PreflightError
from allrounder.evaluation.probes import Probe
from allrounder.report.footnotes import footnotes
from allrounder.report.outcome import NATURAL, OUTCOME_FILE, Outcome
from allrounder.system.checked_files import read_arrays
from allrounder.threats.norms import L1, Linf
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels
from tests.support.evaluations import (
    BATCH_SIZE,
    CASCADE,
    PARTS,
    PGD,
    PROBES,
    images,
    read_outcome_bytes,
    run_evaluation,
    trained_network,
)


def file_of(folder: Path, probe: Probe) -> Path:
    return folder / "examples" / f"{probe.name}@{str(probe.threat).replace(':', '-')}.safetensors"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """An evaluation that keeps its images."""
    folder = tmp_path_factory.mktemp("kept") / "eval"
    return folder, run_evaluation(folder, keep_examples=True, check="stop")


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_kept_images_match_the_outcome(probe: Probe, kept: tuple[Path, Outcome]):
    folder, outcome = kept
    assert read_arrays(file_of(folder, probe))[1] == {"probe": str(probe)}
    stored = load_file(file_of(folder, probe))
    rows, x, model = stored["row"], stored["x"], trained_network()
    natural = images().fetch(rows)
    fooled = (outcome.predicted[NATURAL] == outcome.label) & (outcome.predicted[str(probe)] != outcome.label)
    assert rows.tolist() == np.flatnonzero(fooled).tolist() and len(rows) > 2
    assert stored["label"].tolist() == images().labels[rows].tolist()
    # Shown again in the shape of a batch, as every answer depends on it.
    shown = torch.cat([model(torch.cat([x[k : k + 1]] * BATCH_SIZE))[:1] for k in range(len(x))]).argmax(1)
    assert shown.tolist() == stored["predicted"].tolist() == outcome.predicted[str(probe)][fooled].tolist()
    assert bool((shown != stored["label"]).all())
    distance = probe.threat.norm.length(x.double() - natural.double())
    assert torch.equal(distance, torch.from_numpy(outcome.distance[str(probe)][fooled]))
    assert bool(probe.threat.contains(natural, x).all()) and float(x.min()) >= 0 and float(x.max()) <= 1


def test_keeping_images_changes_no_number(kept: tuple[Path, Outcome], tmp_path: Path):
    run_evaluation(tmp_path, check="stop")
    assert read_outcome_bytes(tmp_path) == read_outcome_bytes(kept[0])
    assert not (tmp_path / "examples").exists()


def test_images_are_kept_over_interruptions_and_follow_the_number_of_images(tmp_path: Path):
    split = images()
    for n in (24, 8, 24):
        result = run_evaluation(tmp_path, split=split, n=n, keep_examples=True)
        for probe in PROBES:
            rows = load_file(file_of(tmp_path, probe))["row"] if file_of(tmp_path, probe).exists() else ()
            assert len(rows) == int((result.stage[str(probe)] > 0).sum())
    never = Probe("none", Square(queries=1), Threat.parse("L2:1e-6"))
    file_of(tmp_path, never).write_bytes(b"from a call with more images")
    run_evaluation(tmp_path, probes=[never], keep_examples=True)
    assert not file_of(tmp_path, never).exists()


def test_keeping_images_needs_a_folder():
    with pytest.raises(ValueError, match=r"keep_examples: got no folder, expected one .*; give out="):
        run_evaluation(keep_examples=True)


def facts(**options: Any) -> dict[str, Any]:
    options.setdefault("check", "stop")
    return dict(run_evaluation(**options).facts)


def test_facts_are_complete_and_contain_no_times(kept: tuple[Path, Outcome]):
    result = dict(Outcome.load(kept[0] / OUTCOME_FILE).facts)
    named = ("seed", "batch_size", "threads", "images", "budget", "stages", "settings", "attacks", "classes")
    named = (*named, "masking")
    assert result.keys() == {*named, "white_box", "questions", "findings", "flags", "network", "data", "rows"}
    assert (result["seed"], result["batch_size"], result["threads"], result["images"]) == (
        0,
        BATCH_SIZE,
        1,
        24,
    )
    assert result["stages"] == {str(CASCADE): ["square", "apgd-ce", "fab-t"], str(PGD): ["pgd"]}
    assert result["white_box"] == {str(CASCADE): [False, True, True], str(PGD): [True]}
    assert result["settings"][str(CASCADE)] == [str(part) for part in PARTS]
    budgets = "square: 6 queries; apgd-ce: 3 steps, loss ce; fab-t: 2 steps, 1 targets"
    assert result["attacks"][str(CASCADE)] == budgets
    assert result["attacks"][str(PGD)] == str(Pgd(steps=3)) and result["classes"] == 3
    assert json.loads(json.dumps(result)) == result
    assert not re.search(r"\d\d:\d\d|20\d\d-|time|date|second", json.dumps(result))


def test_facts_contain_the_budget_as_given():
    assert BUDGETS == {"smoke": 20, "quick": 200, "standard": 1000, "full": None}
    assert (facts(probes=[])["budget"], facts(probes=[])["images"]) == ("full", 24)
    assert [facts(probes=[], budget="smoke")[key] for key in ("budget", "images")] == ["smoke", 20]
    assert [facts(probes=[], n=7)[key] for key in ("budget", "images")] == ["7 images", 7]
    assert facts(probes=[], budget="standard")["images"] == 24  # there are no more


def test_rounded_budget_gives_a_warning_and_a_flag():
    with pytest.warns(UserWarning, match="not equal"):
        result = run_evaluation(probes=[Probe.parse("pgd-1@Linf:0.031")])
    (question,) = result.facts["questions"]
    assert question.startswith("Linf:0.031 is close to 8/255 = 0.03137, but not equal")
    assert result.facts["flags"] == [question]
    assert any(line.startswith("FLAGGED: Linf:0.031 is close") for line in footnotes({"network": result}))
    meant = run_evaluation(probes=[Probe.parse("pgd-1@Linf:8/255"), Probe.parse("pgd-1@L2:0.031")])
    assert meant.facts["questions"] == meant.facts["flags"] == []


def test_budget_that_destroys_the_images_gives_a_warning_and_a_flag():
    with pytest.warns(UserWarning, match=r"L2:5: expected a budget of at most .*; did you mean L2:5/255\?"):
        result = run_evaluation(probes=[Probe.parse("pgd-1@L2:5")])
    (question,) = result.facts["questions"]
    assert question.startswith("L2:5: expected") and result.facts["flags"][-1] == question
    with pytest.warns(UserWarning, match="Linf:1: expected a budget of at most 0.5"):
        run_evaluation(probes=[Probe.parse("pgd-1@Linf:1")])


def test_about_is_added_to_the_facts(tmp_path: Path):
    result = run_evaluation(tmp_path, probes=[], about={"name": "ours", "selected_on": "test"})
    assert (result.facts["name"], result.facts["selected_on"], result.facts["seed"]) == ("ours", "test", 0)
    assert Outcome.load(tmp_path / OUTCOME_FILE).facts == result.facts


class Scaled(nn.Module):
    """Ends with something that an evaluation should not see."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = trained_network(), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


def test_check_decides_what_preflight_findings_do(tmp_path: Path):
    model = Scaled(nn.Softmax(1)).eval()
    with pytest.raises(PreflightError, match="probabilities"):
        run_evaluation(tmp_path / "stop", model=model, probes=[], check="stop")
    assert not (tmp_path / "stop").exists()
    noted = facts(model=model, probes=[], check="note")["findings"]
    assert [text.partition(":")[0] for text in noted] == ["probabilities"]
    skipped = facts(model=model, probes=[], check="skip")
    assert skipped.keys().isdisjoint(("findings", "classes", "attacks"))


@pytest.mark.parametrize(
    ("classes", "dlr", "targeted"),
    [
        (2, "margin (the ratio needs more classes than 2)", "1 targets, loss targeted margin (the ratio"),
        (3, "dlr", "2 targets, loss targeted margin (the ratio needs more classes than 3)"),
        (4, "dlr", "3 targets, loss targeted dlr"),
        (10, "dlr", "9 targets, loss targeted dlr"),
        (100, "dlr", "9 targets, loss targeted dlr"),
    ],
)
def test_budget_names_the_fallback_loss(classes: int, dlr: str, targeted: str):
    assert Apgd(surrogate="dlr").describe_budget(classes) == f"apgd-dlr: 100 steps, loss {dlr}"
    description = Apgd(surrogate="dlr", targets=9).describe_budget(classes)
    assert description.startswith(f"apgd-t: 100 steps, {targeted}") and ("ratio" in description) is (
        classes < 4
    )
    assert Apgd().describe_budget(classes) == "apgd-ce: 100 steps, loss ce"
    assert Fab(targets=9).describe_budget(classes) == f"fab-t: 100 steps, {min(9, classes - 1)} targets"


def test_budget_of_autoattack_lists_its_stages():
    linf, l1 = (Probe("aa", AutoAttack(), Threat(norm, "1")) for norm in (Linf(), L1()))
    budgets = describe_budgets([linf, l1], 10)
    assert budgets[str(linf)] == (
        "apgd-ce: 100 steps, loss ce; apgd-t: 100 steps, 9 targets, loss targeted dlr; "
        "fab-t: 100 steps, 9 targets; square: 5000 queries"
    )
    assert budgets[str(l1)].startswith("apgd-ce: 100 steps, 5 restarts, radii 3, 2, 1 eps, loss ce; apgd-t: ")
    mine = CustomLoss(name="mine", function=lambda logits, y, natural: logits[:, 0])
    assert (
        Apgd(surrogate=mine, eot=4).describe_budget(2).endswith("100 steps, mean of 4 gradients, loss mine")
    )
    assert Pgd(steps=7).describe_budget(10) == str(Pgd(steps=7))


class Recorded:
    """Remembers how many images were wanted at once."""

    def __init__(self) -> None:
        self.split, self.wanted = images(20), list[int]()

    def __len__(self) -> int:
        return len(self.split)

    @property
    def labels(self) -> Labels:
        return self.split.labels

    def fetch(self, index: Labels) -> Images:
        self.wanted.append(len(index))
        return self.split.fetch(index)


@pytest.mark.parametrize("limit", ["CHUNK_IMAGES", "CHUNK_BYTES"])
def test_few_images_are_held_at_once(limit: str, monkeypatch: pytest.MonkeyPatch):
    whole = run_evaluation(split=images(20))
    monkeypatch.setattr(runner, limit, 10 if limit == "CHUNK_IMAGES" else 10 * 8 * 8 * 4 + 1)
    split = Recorded()
    assert isinstance(split, Split)
    result = run_evaluation(split=split)
    assert split.wanted == [1, 1, 10, 10]
    for name in whole.predicted:
        assert np.array_equal(result.predicted[name], whole.predicted[name])
    monkeypatch.setattr(runner, limit, 1)  # a batch is always filled
    few = Recorded()
    run_evaluation(split=few, probes=[])
    assert max(few.wanted) == BATCH_SIZE
