"""The JSON file of a model in RobustBench's list."""

from __future__ import annotations

import re

from allrounder.errors import InputError
from allrounder.report.footnotes import stored_flags
from allrounder.report.outcome import NATURAL, THREAT_SUMMARIES, Facts, Outcome
from allrounder.report.statistics import format_percent
from allrounder.report.tables import to_json

REQUIRED_FIELDS = {
    **{"link": str, "name": str, "authors": str, "additional_data": bool, "number_forward_passes": int},
    **{"dataset": str, "venue": str, "architecture": str, "reported": str},
}
"""What RobustBench asks about a model beyond an outcome; "reported" is the paper's own robust percent."""
OPTIONAL_FIELDS = {"external": str, "footnote": str}
TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""The number of images that RobustBench evaluates on."""


def to_robustbench(outcome: Outcome, about: Facts, threat: str | None = None) -> str:
    """The file of a model in RobustBench's list: AutoAttack under one threat, percents as texts.

    `about` gives REQUIRED_FIELDS and OPTIONAL_FIELDS. If the outcome is not what the list expects (fewer
    images, weights selected on the test set), the footnote says so.
    """
    probe = _autoattack_probe(outcome, threat)
    _check_fields(about)
    if "extra" in outcome.facts and not about["additional_data"]:
        reason = f"the network was trained on {outcome.facts['extra']}"
        raise InputError(f"robustbench: additional_data: got false, expected true: {reason}")
    expected = TEST_IMAGES.get(about["dataset"].lower().replace("-", ""), len(outcome))
    remarks = [
        about.get("footnote", ""),
        "" if expected == len(outcome) else f"Measured on {len(outcome)} images, not {expected}.",
        "Weights selected on the test set." if outcome.facts.get("selected_on") == "test" else "",
    ]
    entry = {key: about[key] for key in REQUIRED_FIELDS} | {
        "eps": probe.partition(":")[2],
        "clean_acc": format_percent(outcome.accuracy(NATURAL)),
        "autoattack_acc": format_percent(outcome.accuracy(probe)),
        "unreliable": bool(stored_flags(outcome, probe.partition("@")[2])),
    }
    if "external" in about:
        entry["external"] = about["external"]
    if any(remarks):
        entry["footnote"] = " ".join(filter(None, remarks))
    return to_json(entry)


def _autoattack_probe(outcome: Outcome, threat: str | None) -> str:
    """The name of the only AutoAttack probe, or of the one under a threat."""
    probes = outcome.probes("aa") if threat is None else outcome.probe_names("aa", threat)
    if len(probes) != 1 or threat in THREAT_SUMMARIES:
        got = ", ".join(outcome.probes("aa")) or f"no aa among {', '.join(outcome.predicted)}"
        raise InputError(f"robustbench: got {got}, expected aa under one threat; choose one with threat")
    return probes[0]


def _check_fields(about: Facts) -> None:
    if missing := [key for key in REQUIRED_FIELDS if about.get(key) in (None, "")]:
        raise InputError(f"robustbench: missing {', '.join(missing)}; give them in about")
    fields = REQUIRED_FIELDS | OPTIONAL_FIELDS
    for key, got in about.items():
        if type(got) is not fields.get(key):
            expected = fields[key].__name__ if key in fields else f"only {', '.join(fields)}"
            raise InputError(f"robustbench: {key}: got {got!r}, expected {expected}")
        if key in ("reported", "external") and not re.fullmatch(r"\d{1,3}\.\d\d", got):
            raise InputError(f'robustbench: {key}: got {got!r}, expected a percent such as "48.90"')
