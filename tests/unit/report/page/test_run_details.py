"""The provenance of every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allrounder.report.entry import Entry
from allrounder.report.outcome import Outcome
from allrounder.report.page.run_details import describe_run
from tests.support.results import make_training

FACTS = {
    "seed": 3,
    "budget": "full",
    "network": "cc9d",
    "data": "06d7",
    "recipe": "2404",
    "attacks": {"pgd@Linf:1": "Pgd(steps=20)", "aa@Linf:1": {"apgd": {"steps": 100}}},
    "flags": ["shown elsewhere"],
    "threads": 1,
}


def test_a_run_shows_folder_digests_budgets_environment_and_recipe():
    zeros = np.zeros(4, np.int64)
    training = replace(make_training(), sessions=({"torch": "2.13", "threads": 1},))
    entry = Entry("a", {0: Outcome(zeros, {"natural": zeros}, FACTS)}, {0: training}, problems=("damaged",))
    details = describe_run(entry)
    (seed,) = details.seeds
    assert (details.state, details.problems) == ("finished; evaluated", ("damaged",))
    facts = dict(seed.facts)
    assert facts["Folder"] == "runs/demo" and facts["Learners"] == "natural, linf"
    assert facts["Digest of the network"] == "cc9d" and facts["Digest of the data"] == "06d7"
    assert facts["Seed of the evaluation"] == "3" and facts["Test images"] == "4"
    assert seed.attacks == (("pgd@Linf:1", "Pgd(steps=20)"), ("aa@Linf:1", "apgd steps 100"))
    assert seed.sessions == ((("torch", "2.13"), ("threads", "1")),)
    assert seed.recipe == training.recipe and seed.other_facts == '{\n "threads": 1\n}'


def test_a_run_that_was_only_trained_or_only_evaluated_shows_what_there_is():
    zeros = np.zeros(4, np.int64)
    trained = describe_run(Entry("a", trainings={2: make_training()}))
    assert trained.state == "finished; not evaluated" and trained.seeds[0].attacks == ()
    (evaluated,) = describe_run(Entry("a", {7: Outcome(zeros, {"natural": zeros})})).seeds
    assert evaluated.seed == 7 and evaluated.facts == (("Test images", "4"),) and evaluated.recipe == ""
    assert describe_run(Entry("a", problems=("lost",))).seeds == ()
