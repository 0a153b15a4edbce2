"""Exports of a run: their files, their checks, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from allrounder.cli.export import FORMATS
from allrounder.data.base import Data
from allrounder.data.datasets.npz import InMemory
from allrounder.errors import InputError, MissingLibraryError, RecipeError, RunError, StorageError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.experiments import export as exports
from allrounder.experiments.ensemble_run import dial_outputs
from allrounder.experiments.export import Format, check, export, trained_network
from allrounder.experiments.export.card import write_card
from allrounder.experiments.export.check import import_network
from allrounder.experiments.export.folder import create_folder, write_state_dict
from allrounder.experiments.export.robustbench import describe_architecture
from allrounder.models.base import CustomModel
from allrounder.models.ensemble import EnsembleModel, OutputMix
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.system.files import explain_write_errors, hash_file
from allrounder.training.run import Run, load
from allrounder.training.train import train
from tests.support.networks import blobs, tiny
from tests.support.trainings import SOLO, contents, go, recipe
from tests.unit.experiments.export.conftest import Evaluate

ABOUT = {"link": "x", "name": "A study", "authors": "A", "venue": "Unpublished", "reported": "12.00"}
X = Rng(1).fold_in("x").uniform(torch.empty(4, 1, 8, 8))


def test_the_formats_of_the_command_line_are_those_of_python():
    assert FORMATS == exports.FORMATS == get_args(Format)


def test_torch_gets_a_state_dict_and_a_module(run: Path):
    exported = export(run, "torch")
    folder = run / "export" / "torch-best"
    assert exported.folder == folder and exported.check == {"images": "8 random", "logits": "equal bits"}
    assert sorted(os.listdir(folder)) == ["export.json", "model.py", "weights.pt"]
    network = load(run, "best")
    weights = torch.load(folder / "weights.pt", weights_only=True)
    assert weights.keys() == network.state_dict().keys()
    other = import_network(folder / "model.py")
    assert torch.equal(other(X), network(X)) and type(other) is not type(network)
    record = json.loads((folder / "export.json").read_text())
    assert record["recipe"] == Run(run).recipe.fingerprint() and record["weights"] == "best"
    assert record["model"]["kind"] == "small-cnn" and record["shape"] == [1, 8, 8]
    assert record["sha256"] == {name: hash_file(folder / name) for name in ("model.py", "weights.pt")}
    text = (folder / "model.py").read_text()
    assert "Normalise(mean=(0.4,), std=(0.3,))" in text and "from safetensors" not in text


def test_the_weights_are_those_that_are_named(run: Path, tmp_path: Path):
    export(run, "torch", tmp_path / "last", which="linf")
    weights = torch.load(tmp_path / "last" / "weights.pt", weights_only=True)
    stored = Run(run).weights("linf")[0]
    assert all(torch.equal(weights[name], stored[name]) for name in stored)
    with pytest.raises(RunError, match='has no weights "nonsense"'):
        export(run, "torch", tmp_path / "other", which="nonsense")
    assert not (tmp_path / "other").exists()


def test_an_existing_folder_is_never_changed(run: Path, tmp_path: Path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="exists; choose another folder, nothing was changed"):
        export(run, "torch", out)
    assert contents(out) == {"thesis.txt": b"precious"}
    (tmp_path / "empty").mkdir()
    assert export(run, "torch", tmp_path / "empty").folder.is_dir()


def test_the_working_folder_is_not_replaced(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for out in (".", tmp_path / "empty"):
        with pytest.raises(RunError, match="is the working folder, which is not replaced; name a new folder"):
            export(run, "torch", out)
    assert export(run, "torch", "new").folder.is_dir()


def test_weights_that_cannot_be_written_are_an_error_of_the_system(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "weights.pt").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="the disk is full"), explain_write_errors(tmp_path):
        write_state_dict(tmp_path / "weights.pt", {"weight": torch.zeros(4)})


def test_an_error_leaves_no_folder(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), create_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_module_with_other_logits_is_not_written(run: Path, monkeypatch: pytest.MonkeyPatch):
    genuine = check.import_network

    class Wrong(nn.Module):
        def __init__(self, file: Path) -> None:
            super().__init__()
            self.network = genuine(file)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nextafter(self.network(x), torch.tensor(torch.inf))

    monkeypatch.setattr(check, "import_network", Wrong)
    with pytest.raises(RunError, match=r"its logits differ from those of .* by up to"):
        export(run, "torch")
    assert list((run / "export").iterdir()) == []


def test_an_ensemble_is_exported_with_both_networks(run: Path, trained: Path, tmp_path: Path):
    dial_outputs(trained, run, tmp_path / "both", threats=["Linf:0.05"], attack="pgd-1", n=6, tolerance=0.5)
    exported = export(tmp_path / "both", "torch", tmp_path / "out")
    network = import_network(exported.folder / "model.py")
    assert torch.equal(network(X), load(tmp_path / "both")(X))
    assert type(network).__name__ == "Ensemble"


def test_a_network_from_python_has_no_source_to_export(tmp_path: Path):
    folder = go(recipe(SOLO), tmp_path / "run").folder
    with pytest.raises(RunError, match=r"given from Python, so its source is not known here; send its own"):
        export(folder, "torch", model=tiny)
    with pytest.raises(ValueError, match="pass it again"):
        export(folder, "torch")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"to": "onnx", "n": 0}, "n: got 0, expected a number of images"),
        ({"to": "robustbench", "threats": ["Linf:0.1", "L2:1"]}, "expected one for robustbench"),
    ],
)
def test_wrong_arguments_are_refused(run: Path, settings: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        export(run, **settings)


def test_the_hub_gets_weights_a_module_and_a_card(run: Path, evaluated: Evaluate):
    evaluated("natural", "pgd-20@Linf:0.1", "aa@Linf:0.1", selected_on="validation")
    exported = export(run, "hub")
    folder = exported.folder
    assert sorted(os.listdir(folder)) == ["README.md", "config.json", "model.py", "model.safetensors"]
    assert exported.notes == ("recipe.toml is left out, because it holds an absolute path of this machine",)
    assert load_file(folder / "model.safetensors").keys() == load(run).state_dict().keys()
    network = import_network(folder / "model.py")
    assert torch.equal(network(X), load(run, "best")(X))
    card = (folder / "README.md").read_text()
    for text in (
        "| natural | pgd-20@Linf:0.1 | aa@Linf:0.1 |",
        "60.00 (31.27-83.18)",
        "10 images; seed 7; batch size 64.",
        "| training seed | 0 |",
        "| threats of the training | Linf:0.1 |",
        "Weights 'best' selected on validation images.",
        "The recipe is not part of this folder",
        "## Limits",
    ):
        assert text in card, text
    assert str(run.parent) not in "".join(path.read_text("latin-1") for path in folder.iterdir())


def test_the_front_matter_of_a_card_is_yaml(run: Path, evaluated: Evaluate, monkeypatch: pytest.MonkeyPatch):
    yaml: Any = pytest.importorskip("yaml")
    evaluated("natural", "aa@Linf:0.1")
    monkeypatch.setattr(trained_network.TrainedNetwork, "name", "cats \U0001f600")
    card = (export(run, "hub").folder / "README.md").read_text(encoding="utf-8")
    start, matter, _ = card.split("---\n", 2)
    fields = yaml.safe_load(matter)
    assert start == "" and fields["pipeline_tag"] == "image-classification"
    assert fields["model-index"][0]["name"] == "cats \U0001f600"
    metrics = fields["model-index"][0]["results"][0]["metrics"]
    assert [metric["value"] for metric in metrics] == [60.0, 50.0]


def test_a_card_names_extra_images_without_a_path_of_this_machine(
    run: Path, evaluated: Evaluate, monkeypatch: pytest.MonkeyPatch
):
    extra = "70% of every batch from npz (path /srv/more.npz, layout auto)"
    evaluated("natural", extra=extra)
    weights, facts = Run(run).weights("best")
    monkeypatch.setattr(Run, "weights", lambda self, which: (weights, {**facts, "extra": extra}))
    card = (export(run, "hub").folder / "README.md").read_text()
    assert "| extra data | 70% of every batch from npz |" in card and "/srv" not in card
    assert "Trained with EXTRA DATA: 70% of every batch from npz." in card
    monkeypatch.setattr(Run, "weights", lambda self, which: (weights, {**facts, "data": "/srv/x/y.npz"}))
    with pytest.raises(RunError, match=r"README.md: line \d+ holds /srv/x/y.npz.*, an absolute path"):
        export(run, "hub", run / "other")
    assert not (run / "other").exists()


@pytest.mark.parametrize(
    ("facts", "changes", "text"),
    [
        (
            {},
            {},
            "`recipe.toml` has every setting: `allrounder train recipe.toml --out RUN` trains it again.",
        ),
        ({}, {"data": InMemory(name="mine")}, "not the images mine, which were given from Python"),
        (
            {"mixture": {"a": 0.5, "b": 0.5}, "sources": {"a": "at 12", "b": "nt 34"}},
            {},
            "so no recipe alone trains it again: a, recipe at 12; b, recipe nt 34.",
        ),
    ],
)
def test_a_card_says_how_the_network_is_trained_again(
    run: Path, facts: dict[str, Any], changes: dict[str, Any], text: str
):
    loaded = trained_network.TrainedNetwork.load(run, "best")
    changed = Run(run)
    changed.recipe = replace(changed.recipe, **changes)
    card = write_card(replace(loaded, run=changed, facts={**loaded.facts, **facts}), None, "", True)
    assert text in card and ("trains it again." in card) == (not facts and not changes)
    assert ("one training (one seed)" in card) == (not facts)


def test_a_card_without_an_evaluation_says_so(run: Path):
    exported = export(run, "hub")
    assert exported.notes[0] == f"the card has no results; evaluate first: allrounder eval {run}"
    spaced = Path(run.rename(run.with_name("my run")))
    assert f"allrounder eval '{spaced}'" in export(spaced, "hub", spaced / "other").notes[0]
    exported = replace(exported, folder=spaced / "export" / "hub-best")
    assert "These weights were not evaluated." in (exported.folder / "README.md").read_text()


def test_an_outcome_of_another_recipe_or_of_weights_that_may_change_is_refused(
    run: Path, evaluated: Evaluate
):
    evaluated("natural", recipe="0123")
    with pytest.raises(RunError, match="is of recipe 0123, but the run is of"):
        export(run, "hub")
    evaluated("natural", which="global")
    assert export(run, "hub", which="last").notes[0].startswith("recipe.toml")  # last is another name
    for folder in (run / "weights").glob("last-*"):
        folder.rename(folder.with_name("gone"))
    evaluated("natural")
    with pytest.raises(RunError, match="the training is not finished, so its evaluation may be of weights"):
        export(run, "hub", run / "other")


def test_an_outcome_of_other_images_or_of_another_network_is_refused(run: Path, evaluated: Evaluate):
    evaluated("natural", "aa@Linf:0.1", data="0123")
    for to in ("hub", "robustbench"):
        with pytest.raises(RunError, match=r"eval/best: is of other images, .*evaluate again: allrounder"):
            export(run, to, about=ABOUT)
    evaluated("natural", "aa@Linf:0.1", network="0123")
    with pytest.raises(RunError, match=r"eval/best: is of another network, expected the weights best"):
        export(run, "hub")
    assert list((run / "export").iterdir()) == []


def test_a_card_says_that_the_images_of_its_results_are_not_checked(
    run: Path, evaluated: Evaluate, monkeypatch: pytest.MonkeyPatch
):
    evaluated("natural", "aa@Linf:0.1")

    def fail(recipe: Recipe) -> Data:
        raise RecipeError("data: blobs.npz: no such file")

    monkeypatch.setattr(trained_network, "load_data", fail)
    reason = "the test images of the run could not be loaded"
    exported = export(run, "hub")
    assert exported.notes[0] == f"it was not checked what the results are of: {reason}"
    text = f"It was not checked that these numbers are of these weights and of the test images: {reason}."
    assert text in (exported.folder / "README.md").read_text()
    notes = export(run, "robustbench", about=ABOUT).notes
    assert notes[0] == f"it was not checked what the numbers are of: {reason}"


def test_robustbench_gets_its_json_weights_and_entry(run: Path, evaluated: Evaluate):
    evaluated("natural", "aa@Linf:8/255", "aa@L2:1")
    with pytest.raises(RunError, match="has aa@Linf:8/255, aa@L2:1, expected one; choose one with --threat"):
        export(run, "robustbench", about=ABOUT)
    about = {**ABOUT, "model_id": "Me2025_Tiny-1", "dataset": "cifar10"}
    exported = export(run, "robustbench", about=about, threats=["Linf"])
    folder = exported.folder
    entry = json.loads((folder / "model_info/cifar10/Linf/Me2025_Tiny-1.json").read_text())
    assert (entry["eps"], entry["clean_acc"], entry["autoattack_acc"]) == ("8/255", "60.00", "50.00")
    assert (entry["architecture"], entry["additional_data"]) == ("small-cnn, width 1", False)
    assert entry["footnote"] == "Measured on 10 images, not 10000."
    assert exported.notes == ("measured on 10 images; RobustBench expects 10000",)
    weights = torch.load(folder / "models/cifar10/Linf/Me2025_Tiny-1.pt", weights_only=True)
    module = import_module_of(folder)
    built = module.ZOO_ENTRY["Me2025_Tiny-1"]["model"]()
    built.load_state_dict(weights, strict=True)  # as RobustBench does
    assert torch.equal(built.eval()(X), load(run, "best")(X))
    assert 'load_model("Me2025_Tiny-1", dataset="cifar10"' in (folder / "README.md").read_text()


def import_module_of(folder: Path) -> Any:
    text = compile((folder / "model.py").read_text(), str(folder / "model.py"), "exec")
    names: dict[str, Any] = {"__file__": str(folder / "model.py"), "__name__": "exported"}
    exec(text, names)
    return type("Module", (), names)


def test_robustbench_takes_any_spelling_of_a_threat_and_of_a_dataset(run: Path, evaluated: Evaluate):
    evaluated("natural", "aa@Linf:0.1", "aa@Linf:0.2", "aa@L2:1")
    about = {**ABOUT, "model_id": "Me", "dataset": "CIFAR-10"}
    for number, (threat, eps) in enumerate((("linf:0.10", "0.1"), ("l_2", "1"))):
        folder = export(run, "robustbench", run / f"out-{number}", about=about, threats=[threat]).folder
        (file,) = folder.glob("model_info/cifar10/*/Me.json")
        entry = json.loads(file.read_text())
        assert (entry["eps"], entry["dataset"]) == (eps, "cifar10")


def test_architectures_are_named_as_in_robustbench():
    first, second = SmallCnn(width=2), WideResNet(depth=28, widen=10)
    assert describe_architecture(first, "small-cnn") == "small-cnn, width 2"
    assert describe_architecture(second, "wrn") == "WideResNet-28-10"
    both = EnsembleModel(
        natural=first, robust=second, mix=OutputMix(alpha=0.7, scale=2.0, power=2.0, shift=0.5)
    )
    nested = EnsembleModel(natural=first, robust=both, mix=both.mix)
    assert describe_architecture(both, "ensemble") == f"Ensemble of {both.num_networks}" == "Ensemble of 2"
    assert describe_architecture(nested, "ensemble") == "Ensemble of 3"
    assert describe_architecture(CustomModel(name="mine"), "python") == "python"  # it has no width


def test_robustbench_adds_a_prefix_to_networks_for_imagenet(run: Path, evaluated: Evaluate):
    evaluated("natural", "aa@Linf:4/255")
    about = {**ABOUT, "model_id": "Me", "dataset": "imagenet"}
    folder = export(run, "robustbench", about=about).folder
    weights = torch.load(folder / "models/imagenet/Linf/Me.pt", weights_only=True)
    built = import_module_of(folder).ZOO_ENTRY["Me"]["model"]()
    built.load_state_dict({f"model.{name}": tensor for name, tensor in weights.items()}, strict=True)
    assert torch.equal(built.eval()(X), load(run, "best")(X))


def test_robustbench_names_the_command_that_is_missing(run: Path, evaluated: Evaluate):
    command = f"run first: allrounder eval {run} --attack aa --threat Linf:0.1"
    with pytest.raises(RunError, match=f"has no evaluation with AutoAttack.*{command}"):
        export(run, "robustbench", about=ABOUT)
    evaluated("natural", "aa@L2:1", which="last")
    with pytest.raises(
        RunError,
        match=r"has aa@L2:1, but not aa@Linf:8/255, which .* --which last --attack aa --threat Linf:8/255",
    ):
        export(run, "robustbench", about=ABOUT, which="last", threats=["Linf:8/255"])
    with pytest.raises(RunError, match=r"but not aa@L1, which .* --threat L1:BUDGET "):
        export(run, "robustbench", about=ABOUT, which="last", threats=["l1"])
    with pytest.raises(InputError, match=r"about: missing link, name, .*; write a TOML file with these keys"):
        export(run, "robustbench", which="last")
    with pytest.raises(RunError, match=r"about.model_id: got '../x', expected letters"):
        export(run, "robustbench", which="last", about={**ABOUT, "model_id": "../x"})


def test_a_missing_library_is_named(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingLibraryError, match=r"needs the library onnxruntime.*allrounder\[onnx\]"):
        export(run, "onnx")


def test_attacks_on_an_exported_residual_network_have_the_same_outcome(tmp_path: Path):
    """Its classes are others, and batch-norm is folded as in the network of the run."""
    custom, resnet = 'kind = "python", name = "tiny"', 'kind = "resnet18", width = 8'
    value = recipe(SOLO, ("epochs = 3", "epochs = 1"), (custom, resnet))
    run = train(value, tmp_path / "run", data=blobs(24), progress=False)
    network = import_network(export(run, "torch").folder / "model.py")
    results = [
        evaluate(model, blobs(24), probes=["pgd-3@Linf:0.1"], n=9, options=EvalOptions(check="skip"))
        for model in (load(run, "best"), network)
    ]
    assert results[0].disagreements(results[1]) == {"natural": [], "pgd-3@Linf:0.1": []}
    distances = [result.distance["pgd-3@Linf:0.1"] for result in results]
    assert np.array_equal(*distances, equal_nan=True)
