"""From the lines of a ledger to an outcome, and what a reader must know of how they came about."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor, nn

from allrounder.attacks import label_of
from allrounder.attacks.apgd import Apgd
from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.base import Attack
from allrounder.attacks.fab import Fab
from allrounder.attacks.square import Square
from allrounder.data.base import Split
from allrounder.errors import RunError
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import key_of
from allrounder.evaluation.store import Ledger, Lines
from allrounder.inference.attack_view import lend
from allrounder.report.corruption_metrics import view_of
from allrounder.report.outcome import NATURAL, Facts, Outcome
from allrounder.rng import Draws
from allrounder.system.files import aside
from allrounder.types import Classifier, Labels, device_of

SAMPLE, MANY = 8, 512
"""Images by whose answers a network, and by which a dataset is known again."""
BY_PROBE = ("stages", "settings", "attacks", "ood")
"""Facts that have a part for every probe, or for every set of changed images."""


def outcome_of(
    ledger: Ledger, probes: Sequence[Probe], rows: Labels, labels: Labels, facts: Facts
) -> Outcome:
    """What the lines say of these images; a cascade's verdict is that of its parts, in their order."""
    natural = ledger.lines(NATURAL)
    check_whole(NATURAL, natural, rows)
    predicted = {NATURAL: natural.predicted[rows]}
    distance, stage = dict[str, Tensor](), dict[str, Tensor]()
    for probe in probes:
        verdict, far = natural.predicted[rows].clone(), natural.distance[rows].clone()
        by = torch.where(verdict == labels, -1, 0)
        for number, attack in enumerate(stages_of(probe.attack, probe.threat), start=1):
            lines, left = ledger.lines(key_of(probe, attack, number - 1)), by == -1
            check_whole(str(probe), lines, rows[left])
            new = left & (lines.predicted[rows] != labels)
            verdict, far = (
                torch.where(new, now[rows], old)
                for now, old in ((lines.predicted, verdict), (lines.distance, far))
            )
            by = torch.where(new, number, by)
        predicted[str(probe)], distance[str(probe)], stage[str(probe)] = verdict, far, by
    return Outcome(
        labels.numpy(),
        {name: tensor.numpy() for name, tensor in predicted.items()},
        facts,
        distance={name: tensor.numpy() for name, tensor in distance.items()},
        stage={name: tensor.numpy() for name, tensor in stage.items()},
    )


def stored(file: Path) -> Outcome | None:
    """The outcome in a file, if there is one."""
    if not file.is_file():
        return None
    try:
        return Outcome.load(file)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete it, and call again") from None


def joined(earlier: Outcome, now: Outcome) -> Outcome:
    """What two calls say of the same images: probes in the order in which they came, as they are now.

    Changed images go together only if they are of one set: of another, the earlier ones are left out.
    """
    had, has = (outcome.facts.get("ood", {}) for outcome in (earlier, now))
    other = [key for key in had if key in has and had[key] != has[key]]

    def both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        kept = {
            name: of
            for name, of in old.items()
            if (view := view_of(name)) is None or view.origin not in other
        }
        return {**kept, **new}

    facts = both(earlier.facts, now.facts)
    for key in BY_PROBE:
        if key in facts:
            facts[key] = both(earlier.facts.get(key, {}), now.facts.get(key, {}))
    asked = [*earlier.facts.get("questions", ()), *now.facts.get("questions", ())]
    facts |= {"questions": list(dict.fromkeys(asked))}
    return Outcome(
        now.label,
        both(earlier.predicted, now.predicted),
        facts,
        distance=both(earlier.distance, now.distance),
        stage=both(earlier.stage, now.stage),
    )


def check_whole(name: str, lines: Lines, rows: Labels) -> None:
    """Raise where a line is missing."""
    if missing := int((~lines.settled[rows]).sum()):
        raise RunError(f"{name}: {missing} of {len(rows)} images are not settled; call again to continue")


def save_examples(
    folder: Path, ledger: Ledger, probes: Sequence[Probe], outcome: Outcome, rows: Labels
) -> None:
    """One file for every probe: the images that fooled the network, with their rows, labels and
    predictions."""
    for probe in probes:
        by, kept = outcome.stage[str(probe)], dict[int, Tensor]()
        broken = [i for i, number in enumerate(by) if number > 0]
        for stage, attack in enumerate(stages_of(probe.attack, probe.threat)):
            mine = {int(rows[i]) for i in broken if by[i] == stage + 1}
            kept |= ledger.examples(key_of(probe, attack, stage), mine)
        file = folder / "examples" / f"{str(probe).replace('/', '_').replace(':', '-')}.safetensors"
        if not broken:
            file.unlink(missing_ok=True)  # a call with more images may have left one
            continue
        images = [kept[int(rows[i])] for i in broken]
        file.parent.mkdir(exist_ok=True)
        some = torch.tensor(broken)
        whole = {"x": torch.stack(images), "row": rows[some]}
        whole |= {"label": torch.from_numpy(outcome.label)[some]}
        whole |= {"predicted": torch.from_numpy(outcome.predicted[str(probe)])[some]}
        save_file(whole, aside(file), metadata={"probe": str(probe)})
        aside(file).replace(file)


def budget_of(attack: Attack, classes: int) -> str:
    """What an attack spends on an image at most, and what it climbs: "apgd-t: 100 steps, 9 targets, ..."."""
    words: list[str]
    match attack:
        case Apgd():
            rounds = attack.rounds(classes) // attack.restarts
            words = [f"{attack.steps} steps", f"{rounds} targets" if attack.targets else ""]
            words += [f"{attack.restarts} restarts" if attack.restarts > 1 else ""]
            words += [
                f"radii {', '.join(f'{r:g}' for r, _ in attack.schedule)} eps" * (len(attack.schedule) > 1)
            ]
            words += [f"mean of {attack.eot} gradients" if attack.eot > 1 else ""]
            used, asked = attack.loss_used(classes), str(attack.surrogate)
            few = (
                f" (the ratio needs more classes than {classes})"
                if asked == "dlr" and "margin" in used
                else ""
            )
            words += [f"loss {used}{few}"]
        case Fab():
            rounds = attack.rounds(classes) // attack.restarts
            words = [f"{attack.steps} steps", f"{rounds} targets" if attack.targets else ""]
            words += [f"{attack.restarts} restarts" if attack.restarts > 1 else ""]
        case Square():
            words = [f"{attack.queries} queries"]
            words += [f"{attack.restarts} restarts" if attack.restarts > 1 else ""]
        case _:
            return str(attack)
    return f"{label_of(attack)}: {', '.join(filter(None, words))}"


def settings(probes: Sequence[Probe], classes: int) -> dict[str, str]:
    """The budget of every probe in words."""
    return {
        str(probe): "; ".join(budget_of(attack, classes) for attack in stages_of(probe.attack, probe.threat))
        for probe in probes
    }


def told(probes: Sequence[Probe], rows: Labels) -> dict[str, Any]:
    """Facts known beforehand: images, stages of the probes with all settings, doubts about their budgets."""
    questions = [threat.question() for threat in dict.fromkeys(probe.threat for probe in probes)]
    for question in filter(None, questions):
        warnings.warn(question, stacklevel=3)
    return {
        "images": len(rows),
        "rows": rows_digest(rows),
        "stages": {str(p): [label_of(attack) for attack in stages_of(p.attack, p.threat)] for p in probes},
        "settings": {str(p): [str(attack) for attack in stages_of(p.attack, p.threat)] for p in probes},
        "questions": [question for question in questions if question is not None],
    }


def identity(model: Classifier, split: Split) -> dict[str, Any]:
    """What tells one network and one dataset from others: digests of weights, answers, labels and images.

    A network may depend on more than its tensors, so it is also known by its answers about some images, with
    one thread, because others may round differently.
    """
    some = torch.arange(0, len(split), -(-len(split) // MANY))
    images, found = split.fetch(some), hashlib.sha256()
    if isinstance(model, nn.Module):
        found.update(str(model).encode())
        for name, tensor in [*model.state_dict().items(), *model.named_buffers()]:
            found.update(name.encode() + _bytes(tensor))
    shown, threads = images[:: -(-len(images) // SAMPLE)].to(*device_of(model)), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with lend(model, shown, "eval"), torch.no_grad(), Draws(0).at("identity").ambient():
            found.update(_bytes(model(shown)))
    finally:
        torch.set_num_threads(threads)
    data = hashlib.sha256(_bytes(split.labels) + _bytes(images))
    return {"network": found.hexdigest()[:16], "data": data.hexdigest()[:16], "images of data": len(split)}


def rows_digest(rows: Labels) -> str:
    """What tells one choice of images from others."""
    return hashlib.sha256(_bytes(rows)).hexdigest()[:16]


def _bytes(state: object) -> bytes:
    """Of a tensor its memory; modules may also have state of other kinds."""
    if not isinstance(state, Tensor) or state.dim() == 0:
        return repr(state.item() if isinstance(state, Tensor) else state).encode()
    return state.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
