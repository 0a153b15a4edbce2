"""Runs the attacks of an evaluation on the images of a split and stores the results.

Every batch that the network sees has the same size, and random numbers are addressed per image and attack. So
a result does not depend on the images in the same batch, on what ran before, or on the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from allrounder.attacks.base import check_adversarial, perturb
from allrounder.attacks.search.base import Search
from allrounder.attacks.search.driver import Examples, SearchDriver, SearchResults
from allrounder.data.base import Split
from allrounder.errors import InputError, Interrupted
from allrounder.evaluation.probes import AttackStage, Probe, probe_stages
from allrounder.evaluation.store import ResultStore
from allrounder.inference.attack_view import attack_view
from allrounder.inference.fast_conv import with_fast_convs
from allrounder.inference.fold import Folded
from allrounder.inference.share import share_parameters_
from allrounder.nn.amp import full_precision
from allrounder.report.outcome import NATURAL
from allrounder.rng import Rng
from allrounder.system.memory import release_freed_memory
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool, device_and_dtype

CHUNK_IMAGES, CHUNK_BYTES = 1024, 1 << 26
"""The most images, and bytes of them, that are held in memory at once."""
SAVE_INTERVAL, REPORT_INTERVAL = 20.0, 0.1
"""Seconds between two shards, and between two progress reports, of one attack."""


@final
@dataclass(frozen=True)
class AttackProgress:
    """The progress of one attack on one chunk: images done and fooled, and passes of the network so far."""

    stage: str
    done: int
    total: int
    fooled: int = 0
    passes: Passes = field(default_factory=Passes)


@final
@dataclass(frozen=True, eq=False)
class AttackRunner:
    """Runs probes on images of a split. A module is in evaluation mode meanwhile."""

    model: Classifier
    split: Split
    store: ResultStore
    seed: int
    batch_size: int
    keep_examples: bool = False
    """Whether the store keeps the adversarial images."""
    report: Callable[[AttackProgress], None] = lambda progress: None
    """Called often; it may raise to stop."""
    fast_networks: dict[Folded, Folded] = field(default_factory=dict[Folded, Folded])
    """The networks that searches query, by the folded copies that they are made of."""

    def run(self, rows: Labels, probes: Sequence[Probe]) -> None:
        """Run all probes on the images at `rows`, except what the store already holds."""
        first = self.split.fetch(rows[:1])
        size = max(self.batch_size, min(CHUNK_IMAGES, CHUNK_BYTES // max(first.nbytes, 1)))
        with torch.inference_mode(False), torch.no_grad(), full_precision(device_and_dtype(self.model)[0]):
            for start in range(0, len(rows), size):
                chunk = rows[start : start + size]
                natural_done = bool(self.store.results(NATURAL).done[chunk].all())
                if not natural_done or any(True for _ in self._pending(chunk, probes)):
                    # A network that draws random numbers in evaluation mode gets seeded ones.
                    with Rng(self.seed).fold_in("evaluate", int(chunk[0])).seed_global():
                        self._run_chunk(chunk, probes)

    def _pending(self, rows: Labels, probes: Sequence[Probe]) -> Iterator[tuple[AttackStage, PerExampleBool]]:
        """Each stage with the images that it still has to attack; the next stage depends on its results."""
        labels = self.split.labels[rows]
        for probe in probes:
            robust = self.store.results(NATURAL).predicted[rows] == labels
            for stage in probe_stages(probe):
                results = self.store.results(stage.key())
                if (pending := robust & ~results.done[rows]).any():
                    yield stage, pending
                robust = robust & (results.predicted[rows] == labels)

    def _run_chunk(self, rows: Labels, probes: Sequence[Probe]) -> None:
        device, dtype = device_and_dtype(self.model)
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the network is in {dtype}, expected float32 or float64; convert it")
        x, labels = self.split.fetch(rows).to(device, dtype), self.split.labels[rows]
        with attack_view(self.model, x, "eval") as view:
            network = self._fast_network(view, x) if isinstance(view, Folded) else view
            examples = Examples(x, labels.to(device), self.logits(x), rows)
            self._store_natural(rows, labels, examples.natural)
            for stage, pending in self._pending(rows, probes):
                self._run_stage(stage, examples.select(_indices(pending)), network)

    def _fast_network(self, folded: Folded, x: Images) -> Folded:
        """The folded copy with fast convolutions, made once."""
        if folded not in self.fast_networks:
            fast = self.fast_networks[folded] = with_fast_convs(folded, x.new_empty(2, *x.shape[1:]))
            share_parameters_(fast, folded)
            release_freed_memory()
        return self.fast_networks[folded]

    def _store_natural(self, rows: Labels, labels: Labels, logits: Logits) -> None:
        """Check the labels, and store the natural predictions."""
        highest, classes = int(labels.max()), logits.shape[1]
        if highest >= classes:
            expected = f"expected at most {classes - 1}, the network's last class"
            raise InputError(f"the largest label is {highest}, {expected}; check labels and network")
        predicted = logits.argmax(1).cpu()
        distance = torch.where(predicted == labels, float("nan"), 0.0).double()
        self.store.add(NATURAL, rows, predicted, distance)
        # A random network may have predicted another class in an earlier call; the first prediction counts.
        wrong = int((self.store.results(NATURAL).predicted[rows] != labels).sum())
        self.report(AttackProgress(NATURAL, len(rows), len(rows), wrong))

    def _run_stage(self, stage: AttackStage, examples: Examples, network: Classifier) -> None:
        """Run one attack on some examples, and store results while it runs."""
        threat = stage.probe.threat
        writer = ResultWriter(self.store, stage.key(), examples, threat, self.keep_examples)

        def update(results: SearchResults) -> None:
            writer.latest = results
            done = results.done
            if not done.all() and time.monotonic() - writer.reported_at < REPORT_INTERVAL:
                return
            if done.all() or time.monotonic() - writer.saved_at > SAVE_INTERVAL:
                writer.write()
            writer.reported_at = time.monotonic()
            fooled = int((results.predicted != writer.labels)[done].sum())
            self.report(AttackProgress(stage.label(), int(done.sum()), len(examples), fooled, results.passes))

        rng = stage.rng(Rng(self.seed))
        try:
            if isinstance(stage.attack, Search):
                width = stage.batch_width(examples.natural.shape[1], examples.x[0].numel(), self.batch_size)
                SearchDriver(stage.attack, network, self.model, threat, rng, width).run(examples, update)
            else:
                self._run_fixed_length(stage, rng, examples, update)
        except (Interrupted, KeyboardInterrupt):
            writer.write()
            raise

    def _run_fixed_length(
        self, stage: AttackStage, rng: Rng, examples: Examples, update: Callable[[SearchResults], None]
    ) -> None:
        """Run an attack with a fixed number of steps, batch by batch."""
        results = SearchResults.empty(examples)
        for positions, count in self._batches(len(examples)):
            batch, real = examples.select(positions), positions[:count]
            row_rng = rng.per_example(batch.rows)
            crafted = perturb(stage.attack, self.model, batch.x, batch.y, stage.probe.threat, row_rng)
            results.x[real] = crafted.x[:count]
            results.predicted[real] = self.logits(crafted.x).argmax(1)[:count].cpu()
            results.done[real] = True
            results = replace(results, passes=results.passes + crafted.passes + Passes(forwards=1))
            update(results)

    def logits(self, x: Images) -> Logits:
        """The logits of the unmodified network, in batches of the fixed size."""
        batches = self._batches(len(x))
        logits = torch.cat([self.model(x[positions])[:count] for positions, count in batches])
        if bad := int((~logits.isfinite()).any(dim=1).sum()):
            raise InputError(
                f"the network's logits are not finite for {bad} of {len(x)} images; fix the network"
            )
        return logits

    def _batches(self, count: int) -> Iterator[tuple[Tensor, int]]:
        """Positions of each batch and how many of them are real: the last batch repeats the last image."""
        for start in range(0, count, self.batch_size):
            positions = torch.arange(start, start + self.batch_size).clamp(max=count - 1)
            yield positions, min(self.batch_size, count - start)


@final
@dataclass(eq=False)
class ResultWriter:
    """Verifies the results of one attack and writes each of them to the store once."""

    store: ResultStore
    key: str
    examples: Examples
    threat: Threat
    keep_examples: bool

    def __post_init__(self) -> None:
        self.labels = self.examples.y.cpu()
        self.latest = SearchResults.empty(self.examples)
        self.written = torch.zeros(len(self.examples), dtype=torch.bool)
        self.saved_at = time.monotonic()
        self.reported_at = 0.0

    def write(self) -> None:
        """Write one shard with all new results; an adversarial image outside the threat is an error."""
        results = self.latest
        new = _indices(results.done & ~self.written)
        x, x_adv, predicted = self.examples.x[new], results.x[new], results.predicted[new]
        check_adversarial(self.key, x_adv, x, self.threat)
        distance = self.threat.norm.length(x_adv.double() - x.double()).cpu()
        distance = torch.where(predicted != self.labels[new], distance, float("nan"))
        kept = x_adv if self.keep_examples else None
        self.store.add(self.key, self.examples.rows[new], predicted, distance, kept)
        self.written[new] = True
        self.saved_at = time.monotonic()


def _indices(mask: PerExampleBool) -> Tensor:
    return mask.nonzero().squeeze(1)
