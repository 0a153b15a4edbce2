"""Makes a gallery: test images that one network classifies correctly and another does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from allrounder.attacks.base import check_adversarial, perturb
from allrounder.data.base import Data, Split
from allrounder.errors import InputError
from allrounder.evaluation.evaluate import select_rows
from allrounder.evaluation.identity import digest_data, digest_rows
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.nn.amp import full_precision
from allrounder.nn.gradcam import grad_cam
from allrounder.nn.modes import preserve_mode
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.gallery import Gallery, GalleryItem, GalleryView, Prediction
from allrounder.report.outcome import NATURAL, Outcome
from allrounder.rng import Rng
from allrounder.types import Images, Labels, device_and_dtype

ATTACK = "pgd-20"
"""The attack that crafts the images of a gallery."""
MAX_ITEMS = 12
MAX_PER_CLASS = 2
"""Images of one class; more if there are too few classes to fill a gallery."""
MAX_THREATS = 3
CANDIDATES_PER_ITEM = 2
"""Images to try for each that is shown: some turn out not to be of their kind under the attack."""
ROUNDING_TOLERANCE = 1e-4
"""In units of 1/255: a perturbation of 7.99999/255 is 8/255 with a rounding error."""


@final
@dataclass(frozen=True, eq=False)
class EvaluatedNetwork:
    """A network with the outcome of its evaluation, under the name of its row in a report."""

    name: str
    model: nn.Module
    outcome: Outcome

    def is_correct(self, probe: str) -> NDArray[np.bool_]:
        """Which images are classified correctly under a probe."""
        return self.outcome.predicted[probe] == self.outcome.label


@final
@dataclass(frozen=True, eq=False)
class ImageKind:
    """Images that one network classifies correctly and the other does not."""

    text: str
    threat: str
    right: int
    """Which of the two networks is right: 0 or 1."""
    is_adversarial: bool
    """Whether the networks differ under attack; else they differ on the natural images."""
    positions: NDArray[np.int64]
    """In the outcomes, by rising position."""

    def describes(self, views: tuple[GalleryView, GalleryView]) -> bool:
        """Whether what is shown of an image is what the text says."""
        right, wrong = views[self.right], views[1 - self.right]
        if not self.is_adversarial:
            return right.natural.is_correct and not wrong.natural.is_correct
        both = right.natural.is_correct and wrong.natural.is_correct
        return both and right.adversarial.is_correct and not wrong.adversarial.is_correct


def make_gallery(
    a: EvaluatedNetwork, b: EvaluatedNetwork, data: Data, judge: str, *, attack: str = ATTACK
) -> Gallery:
    """Choose images that the networks classify differently, and show what each network makes of them.

    The outcomes decide which images are tried: by natural predictions, and by those under the attack `judge`.
    Every network is attacked by itself with `attack`. Only images that are of their kind as shown are kept.
    """
    if data.shape[0] not in (1, 3):
        raise InputError(f"gallery: the images have {data.shape[0]} channels, expected 1 or 3")
    rows = match_rows(data.test, a.outcome)
    if not torch.equal(rows, match_rows(data.test, b.outcome)):
        raise InputError(f"gallery: {a.name} and {b.name} were evaluated on different images, expected equal")
    threats = _common_threats(a.outcome, b.outcome, judge)
    kinds = _list_kinds(a, b, judge, threats, attack)
    per_kind = max(1, MAX_ITEMS // max(1, len(kinds)))
    per_class = max(MAX_PER_CLASS, -(-MAX_ITEMS // len(data.classes)))
    items: list[GalleryItem] = []
    for kind in kinds:
        probe = Probe.of(attack, kind.threat)
        used = Counter(item.label for item in items)
        is_shown = np.isin(rows.numpy()[kind.positions], [item.position for item in items])
        positions = kind.positions[~is_shown]
        chosen = choose_images(positions, a.outcome.label, used, per_class)[: CANDIDATES_PER_ITEM * per_kind]
        shown = _show_images((a, b), data, rows[torch.from_numpy(chosen)], probe, kind)
        items += [item for item in shown if kind.describes(item.views)][:per_kind]
    about = (
        f"Test images that one of {a.name} and {b.name} classifies correctly and the other does not, without "
        f"an attack or under {judge} ({', '.join(threats)}): at most {per_kind} of each kind and "
        f"{per_class} of a class, the first of the test set. Each network is attacked by itself with "
        f"{attack} and sees exactly the 8-bit images that are shown; another attack may fool it where this "
        "one does not."
    )
    return Gallery(tuple(items), about)


def match_rows(split: Split, outcome: Outcome) -> Labels:
    """The rows of a split that an outcome is about; raise InputError unless they are the same images."""
    facts = outcome.facts
    if "data" in facts and facts["data"] != digest_data(split):
        raise InputError("gallery: the outcome is about other images than those of the data; evaluate again")
    rows = select_rows(split, len(outcome), int(facts.get("seed", 0)))
    is_same = len(rows) == len(outcome) and np.array_equal(split.labels[rows].numpy(), outcome.label)
    if not is_same or facts.get("rows", digest_rows(rows)) != digest_rows(rows):
        raise InputError("gallery: the data has no such selection of images as the outcome; evaluate again")
    return rows


def choose_images(
    positions: NDArray[np.int64], label: NDArray[np.int64], used: Counter[int], per_class: int
) -> NDArray[np.int64]:
    """The first images of every class, those of classes that were used less before others; at most
    `per_class` of each with those that were used."""
    seen = Counter(used)
    order: list[tuple[int, int]] = []
    for position in positions.tolist():
        k = int(label[position])
        if seen[k] < per_class:
            order.append((seen[k], position))
            seen[k] += 1
    return np.array([position for _, position in sorted(order)], dtype=np.int64)


def _common_threats(a: Outcome, b: Outcome, judge: str) -> list[str]:
    probes = [name for name in a.probes(judge) if name in b.predicted]
    if not probes:
        raise InputError(f"gallery: the outcomes have no probe of {judge} in common; evaluate both with it")
    return [name.partition("@")[2] for name in probes][:MAX_THREATS]


def _list_kinds(
    a: EvaluatedNetwork, b: EvaluatedNetwork, judge: str, threats: Sequence[str], attack: str
) -> list[ImageKind]:
    """Both ways without an attack, then both ways under every threat; only kinds with images."""
    kinds: list[ImageKind] = []
    for right, (first, second) in enumerate(((a, b), (b, a))):
        differ = np.flatnonzero(first.is_correct(NATURAL) & ~second.is_correct(NATURAL))
        text = f"Without an attack, {first.name} is right and {second.name} is wrong"
        kinds.append(ImageKind(text, threats[0], right, False, differ))
    for threat in threats:
        for right, (first, second) in enumerate(((a, b), (b, a))):
            natural = first.is_correct(NATURAL) & second.is_correct(NATURAL)
            robust, fooled = first.is_correct(f"{judge}@{threat}"), ~second.is_correct(f"{judge}@{threat}")
            text = f"Under {attack} ({threat}), {first.name} is right and {second.name} is wrong"
            kinds.append(ImageKind(text, threat, right, True, np.flatnonzero(natural & robust & fooled)))
    return [kind for kind in kinds if kind.positions.size]


def _show_images(
    networks: tuple[EvaluatedNetwork, EvaluatedNetwork],
    data: Data,
    rows: Labels,
    probe: Probe,
    kind: ImageKind,
) -> list[GalleryItem]:
    """The items of the images at `rows`, of the kind or not."""
    if len(rows) == 0:
        return []
    natural, labels = _to_bytes(data.test.fetch(rows)), data.test.labels[rows]
    first, second = (view_images(network, natural, labels, rows, probe, data.classes) for network in networks)
    pixels = natural.permute(0, 2, 3, 1).numpy()
    return [
        GalleryItem(
            position=int(rows[k]),
            label=int(labels[k]),
            class_name=data.classes[int(labels[k])],
            image=pixels[k],
            attack=probe.name,
            threat=str(probe.threat),
            kind=kind.text,
            views=(first[k], second[k]),
        )
        for k in range(len(rows))
    ]


def view_images(
    network: EvaluatedNetwork,
    natural: Tensor,
    labels: Labels,
    rows: Labels,
    probe: Probe,
    classes: Sequence[str],
) -> list[GalleryView]:
    """Attack 8-bit images of shape (n, c, h, w), and predict and explain natural and adversarial ones.

    The random numbers of the attack are those of an evaluation with the same probe and seed.
    """
    model = network.model
    device, dtype = device_and_dtype(model)
    x, y = (natural.to(device, dtype) / 255), labels.to(device)
    rng = probe_stages(probe)[0].rng(Rng(int(network.outcome.facts.get("seed", 0))))
    with torch.inference_mode(False), torch.no_grad(), full_precision(device), preserve_mode(model):
        model.eval()
        crafted = perturb(probe.attack, model, x, y, probe.threat, rng.per_example(rows)).x
        adversarial = round_perturbation(natural, (crafted - x).cpu())
        x_adv = adversarial.to(device, dtype) / 255
        check_adversarial(f"{probe}, with 8 bits", x_adv, x, probe.threat)
        predictions = [_predict(model, images, y, classes) for images in (x, x_adv)]
        maps = [_explain(model, images) for images in (x, x_adv)]
    shown = adversarial.permute(0, 2, 3, 1).numpy()
    perturbation = ((adversarial.double() - natural.double()) / 255).permute(0, 2, 3, 1).numpy()
    return [
        GalleryView(
            row=network.name,
            natural=predictions[0][k],
            natural_map=maps[0][k],
            adversarial_image=shown[k],
            perturbation=perturbation[k],
            adversarial=predictions[1][k],
            adversarial_map=maps[1][k],
        )
        for k in range(len(rows))
    ]


def round_perturbation(natural: Tensor, perturbation: Tensor) -> Tensor:
    """Add a perturbation to 8-bit images, rounded towards zero, so that it stays in the ball and the box."""
    steps = 255 * perturbation.double()
    steps = (steps + ROUNDING_TOLERANCE * steps.sign()).trunc()
    return (natural + steps).clamp(0, 255).to(torch.uint8)


def _to_bytes(images: Images) -> Tensor:
    return (255 * images.double()).round().to(torch.uint8)


def _predict(model: nn.Module, x: Images, y: Labels, classes: Sequence[str]) -> list[Prediction]:
    confidence, predicted = model(x).cpu().double().softmax(dim=1).max(dim=1)
    return [
        Prediction(classes[int(predicted[k])], float(confidence[k]), bool(predicted[k] == y[k]))
        for k in range(len(x))
    ]


def _explain(model: nn.Module, x: Images) -> Sequence[FloatArray | None]:
    """The Grad-CAM map of every image; None for each if the network has no feature maps."""
    try:
        return list(grad_cam(model, x).cpu().double().numpy())
    except InputError:
        return [None] * len(x)
