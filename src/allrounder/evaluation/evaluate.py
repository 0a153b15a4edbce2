"""Evaluate a network: natural accuracy and accuracy under attack, stored image by image.

evaluate(model, x, y, norm="Linf", eps=8 / 255)                                          # AutoAttack
evaluate(model, data, threats=["Linf:8/255", "L2:128/255"], attacks=["pgd-20", "aa"], out="runs/eval")
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, final, get_args

import torch

from allrounder.config.fields import did_you_mean
from allrounder.data.base import Array, Split, image_shape
from allrounder.data.inputs.coerce import DataLike, as_split
from allrounder.data.splits import stratified_indices
from allrounder.distributed import World
from allrounder.errors import InputError, WorldError
from allrounder.evaluation.assemble import (
    describe_budgets,
    outcome_file,
    probe_facts,
    read_outcome,
    save_examples,
    update_outcome,
)
from allrounder.evaluation.confidence import find_confidence
from allrounder.evaluation.identity import fingerprint_model_and_data
from allrounder.evaluation.job import EvaluationJob
from allrounder.evaluation.masking import check_masking
from allrounder.evaluation.preflight import doctor
from allrounder.evaluation.probes import Eps, Probe, select_probes
from allrounder.evaluation.shifts import CorruptionEval
from allrounder.evaluation.store import ResultStore, open_folder
from allrounder.report.outcome import OUTCOME_FILE, Facts, Outcome
from allrounder.report.reliability import compute_flags
from allrounder.system.files import make_folder
from allrounder.system.memory import release_freed_memory
from allrounder.system.processes import check_picklable
from allrounder.system.progress import ProgressCallback
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Labels, device_and_dtype

BATCH_SIZES = ((1024, 64), (3072, 32), (49_152, 16), (1 << 62, 8))
"""(most values per image, default batch size) on a CPU; other devices get eight times this batch size.

All batches of an evaluation have one size, because another size changes the last bits.
"""
PREFLIGHT_IMAGES = 16
"""Images that the preflight uses."""
BUDGETS: dict[str, int | None] = {"smoke": 20, "quick": 200, "standard": 1000, "full": None}
"""Images of an evaluation. A budget never shortens an attack: with fewer steps it would be another attack."""
BudgetName: TypeAlias = Literal["smoke", "quick", "standard", "full"]
PreflightMode: TypeAlias = Literal["stop", "note", "skip"]


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        expected = f"{', '.join(choices)}{did_you_mean(value, choices)}"
        raise InputError(f"{name}: got {value!r}, expected one of {expected}")


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (not isinstance(value, int) or value < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"{name}: got {value!r}, expected a whole number, 1 or more")


def _check_arguments(model: object, budget: str, workers: int, n: int | None) -> None:
    _check_choice("budget", budget, tuple(BUDGETS))
    _check_positive("workers", workers)
    _check_positive("n", n)
    if not callable(model):
        got = f"the text {model!r}" if isinstance(model, str) else f"a {type(model).__name__}"
        expected = "expected a network, or a function from images to logits"
        raise InputError(f"model: got {got}, {expected}; load one with allrounder.load(RUN)")
    if isinstance(model, type):
        raise InputError(f"model: got the class {model.__name__}, expected a network; call it")


@final
@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `evaluate` that are seldom needed."""

    batch_size: int | None = None
    """Images per forward pass; None chooses it by the size of the images. It changes the last bits."""
    check: PreflightMode = "stop"
    """What severe findings of the preflight do: raise an error, or be noted; skip runs no preflight, no check
    for masked gradients, and measures no confidence."""
    check_masking: bool = True
    """Whether to look for masked gradients with a short FAB and Square, on at most 50 images, under threats
    whose attacks all depend on the gradients of the loss."""
    keep_examples: bool = False
    """Whether to save the images that fool the network, in the folder `out`."""
    about: Facts = field(default_factory=dict[str, Any])
    """More facts for the outcome, such as the name of the network."""
    ood_data: str | Path | None = None
    """A folder with corrupted images for `ood`; None looks in the cache, or generates them."""
    world: World = field(default_factory=World.single_process)
    """The processes started by torchrun; they share the images, and only rank 0 writes."""

    def __post_init__(self) -> None:
        _check_choice("check", self.check, get_args(PreflightMode))
        _check_positive("batch_size", self.batch_size)

    @property
    def looks_for_masking(self) -> bool:
        """Whether to run the check for masked gradients."""
        return self.check_masking and self.check != "skip"


def evaluate(
    model: Classifier,
    data: DataLike,
    y: Array | None = None,
    *,
    probes: Sequence[Probe | str] | str = (),
    norm: str | None = None,
    eps: Eps | Sequence[Eps] | None = None,
    threats: Sequence[Threat | str] | str = (),
    attacks: Sequence[str] | str = (),
    ood: str | Sequence[str] = (),
    n: int | None = None,
    budget: BudgetName = "full",
    seed: int = 0,
    out: str | Path | None = None,
    workers: int = 1,
    progress: ProgressCallback = lambda event: None,
    options: EvalOptions = EvalOptions(),
) -> Outcome:
    """Evaluate any callable from images in [0, 1] to logits; only correctly classified images are attacked.

    The data is a dataset (its test split), a split, images and labels, or a loader of such batches; `n` or
    `budget` selects a class-balanced subset. What to run is given as probes, as attacks under threats, or as
    a norm with one or several eps; without a named attack it is AutoAttack. `ood` adds corruptions and
    perturbations, such as "c:5,p".

    With a folder `out`, results are stored per image and attack: call again after an interruption, or with
    more images or attacks, and no attack is run twice. Returns only the probes of this call; the outcome file
    in `out` accumulates all probes ever run on the same images.

    `workers` are processes with one thread each; any number gives the outcome of one thread in this process.
    """
    world, keep = options.world, options.keep_examples
    _check_arguments(model, budget, workers, n)
    _check_combination(world, workers, keep, out)
    split = as_split(data, y)
    selected = select_probes(probes, norm=norm, eps=eps, threats=threats, attacks=attacks)
    corruptions = CorruptionEval.prepare(ood, split, options.ood_data)
    check_picklable(workers, network=model, data=split, probes=selected)
    rows = select_rows(split, BUDGETS[budget] if n is None else n, seed)
    size = options.batch_size or default_batch_size(model, split)
    settings = {"seed": seed, "batch_size": size, "threads": 1 if workers > 1 else torch.get_num_threads()}
    facts = {**settings, "budget": budget if n is None else f"{n} images"}
    facts |= probe_facts(selected, rows, image_shape(split))
    shared = out is not None or workers * world.size > 1
    fingerprint, findings = _examine(model, split, rows, size, selected, options.check, shared)
    facts |= {**findings, **corruptions.facts()}
    world.assert_equal_across_ranks("the evaluation", {**fingerprint, **facts})
    plan = {**fingerprint, **settings, "examples": keep}
    with ExitStack() as stack:
        folder = _open_folder(stack, out if world.is_main else None, workers, plan)
        job = EvaluationJob(model, split, selected, seed, size, keep, folder, out is not None, corruptions)
        store = job.run(rows, workers, progress, world)
        facts |= check_masking(job, store, rows, facts, progress) if options.looks_for_masking else {}
        outcome = job.build_outcome(store, rows, {**options.about, **facts})
        if options.check != "skip":
            outcome = replace(outcome, confidence=find_confidence(job, rows, outcome))
        if job.persistent and folder is not None:
            _save(job, store, rows, outcome, folder)
    return outcome


def _examine(
    model: Classifier,
    split: Split,
    rows: Labels,
    batch_size: int,
    probes: Sequence[Probe],
    check: PreflightMode,
    shared: bool,
) -> tuple[Facts, Facts]:
    """Run the preflight, and fingerprint the model and the data; return the fingerprint and all facts.

    Only an evaluation inside a training, which skips the preflight and shares no results, has no fingerprint.
    """
    facts: dict[str, Any] = {}
    if check != "skip":
        sample = rows[:: max(len(rows) // PREFLIGHT_IMAGES, 1)][:PREFLIGHT_IMAGES]
        device, dtype = device_and_dtype(model)
        x, y = split.fetch(sample).to(device, dtype), split.labels[sample].to(device)
        diagnosis = doctor(model, x, y, batch_size=batch_size)
        if check == "stop":
            diagnosis.raise_if_bad()
        facts["findings"] = [str(finding) for finding in diagnosis.findings]
        if diagnosis.classes is not None:
            facts |= {"classes": diagnosis.classes, "attacks": describe_budgets(probes, diagnosis.classes)}
        release_freed_memory()
    fingerprint = fingerprint_model_and_data(model, split) if shared or check != "skip" else {}
    return fingerprint, facts | {key: fingerprint[key] for key in fingerprint if key in ("network", "data")}


def _open_folder(stack: ExitStack, out: str | Path | None, workers: int, plan: Facts) -> Path | None:
    """The folder for results: `out`, or a temporary one if workers need to share results."""
    if out is not None:
        stack.enter_context(open_folder(Path(out), plan))
        return Path(out)
    return Path(stack.enter_context(TemporaryDirectory(prefix="allrounder-"))) if workers > 1 else None


def _save(job: EvaluationJob, store: ResultStore, rows: Labels, outcome: Outcome, folder: Path) -> None:
    """Add the probes to those of earlier calls on the same images; OUTCOME_FILE is a copy of the last one."""
    if job.keep_examples:
        save_examples(folder, store, job.probes, outcome, rows)
    file = outcome_file(folder, outcome)
    make_folder(file.parent)
    earlier = read_outcome(file)
    combined = outcome if earlier is None else update_outcome(earlier, outcome)
    combined = replace(combined, facts={**combined.facts, "flags": compute_flags(combined)})
    combined.save(file)
    combined.save(folder / OUTCOME_FILE)


def default_batch_size(model: Classifier, split: Split) -> int:
    """The batch size of BATCH_SIZES for the images of a split and the device of a network."""
    image_size = split.fetch(torch.arange(1)).numel()
    size = next(size for bound, size in BATCH_SIZES if image_size <= bound)
    return size if device_and_dtype(model)[0].type == "cpu" else 8 * size


def select_rows(split: Split, count: int | None, seed: int) -> Labels:
    """The rows to evaluate, sorted: all, or a class-balanced subset that larger subsets contain."""
    if count is None or count >= len(split):
        return torch.arange(len(split))
    return stratified_indices(split, count, seed).sort().values


def _check_combination(world: World, workers: int, keep_examples: bool, out: str | Path | None) -> None:
    if keep_examples and out is None:
        raise InputError("keep_examples: got no folder, expected one to save the images in; give out=...")
    if world.size > 1 and (workers > 1 or keep_examples):
        got = f"workers: got {workers}" if workers > 1 else "keep_examples: got True"
        hint = "torchrun sets the number" if workers > 1 else "images are not sent between ranks, use workers"
        raise WorldError(f"{got} in a world of {world.size} processes; leave it out: {hint}")
