"""The confidence of a network on natural images: the probability of the class that it predicts."""

from __future__ import annotations

import torch

from allrounder.data.base import Split
from allrounder.evaluation.assemble import outcome_file, read_outcome
from allrounder.evaluation.job import EvaluationJob
from allrounder.evaluation.runner import AttackRunner
from allrounder.evaluation.store import ResultStore
from allrounder.nn.amp import full_precision
from allrounder.nn.modes import eval_mode
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.outcome import NATURAL, Outcome
from allrounder.rng import Rng
from allrounder.system.processes import use_threads
from allrounder.types import Classifier, Labels, device_and_dtype


def find_confidence(job: EvaluationJob, rows: Labels, outcome: Outcome) -> FloatArray:
    """The confidences of an outcome: those that its results folder holds for the same images, or new ones."""
    if job.persistent and job.folder is not None:
        earlier = read_outcome(outcome_file(job.folder, outcome))
        if earlier is not None and earlier.confidence is not None:
            return earlier.confidence
    predicted = torch.from_numpy(outcome.predicted[NATURAL])
    with use_threads(outcome.facts["threads"]):
        return measure_confidence(job.model, job.split, rows, predicted, job.batch_size, job.seed)


def measure_confidence(
    model: Classifier, split: Split, rows: Labels, predicted: Labels, batch_size: int, seed: int = 0
) -> FloatArray:
    """The softmax probability of the predicted class of every image at `rows`, in double precision.

    This process passes the images through the network once, in the order of `rows` and in batches of one
    size, so the bits depend neither on the number of processes nor on interruptions.
    """
    device, dtype = device_and_dtype(model)
    runner = AttackRunner(model, split, ResultStore(len(split)), seed, batch_size)
    confidences = [torch.empty(0, dtype=torch.float64)]
    with torch.inference_mode(False), torch.no_grad(), full_precision(device), eval_mode(model):
        for start in range(0, len(rows), batch_size):
            batch = slice(start, start + batch_size)
            # A network that draws random numbers in evaluation mode gets seeded ones.
            with Rng(seed).fold_in("confidence", start).seed_global():
                logits = runner.logits(split.fetch(rows[batch]).to(device, dtype))
            probabilities = logits.cpu().double().softmax(dim=1)
            confidences.append(probabilities.gather(1, predicted[batch, None]).squeeze(1))
    return torch.cat(confidences).numpy()
