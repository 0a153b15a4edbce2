"""The rows of the papers' tables, written down once more, and that the shipped comparisons have them all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allrounder.evaluation.shifts import parse_shifts
from allrounder.experiments.study import Study, shipped_studies
from allrounder.recipe.recipe import Recipe
from allrounder.report.corruption_metrics import ShiftId, average_columns
from allrounder.report.tables import column_key

# CVPR Tables 1 and 3; "AT" is their "AT (beta = 1)"
CVPR = {
    "NT": "nt",
    "AT": "at-linf",
    "AT (beta = 1/2)": "half-half",
    "TRADES (lambda = 6)": "trades-6",
    "TRADES (lambda = 1)": "trades-1",
    "FAT": "fat",
    "IAT": "iat",
    "RST": "rst",
    "Generalist": "generalist-d-nt-linf",
}
CVPR_2 = {"TRADES": "trades", "FAT": "fat", "Generalist": "generalist-d-nt-linf"}
CVPR_4 = {"TRADES": "trades-matched", "Generalist": "generalist-d-nt-linf"}
GENERALISTS = {
    "Generalist-D NT+Linf": "generalist-d-nt-linf",
    "Generalist-D Linf+L2": "generalist-d-linf-l2",
    "Generalist-T": "generalist-t",
}
# Generalist++ Tables I, II and IV
PLUS = {
    "AT": "at-linf",
    "AT (NT+Linf)": "half-half",
    "TRADES (beta = 1)": "trades-1",
    "FAT": "fat",
    "IAT": "iat",
    "SCORE": "score",
    "AGR": "agr",
    "PART": "part",
    "AT (Linf+L2)": "avg-linf-l2",
    "MSD": "msd-linf-l2",
    "E-AT": "e-at",
    "RMC": "rmc",
    **GENERALISTS,
}
PLUS_3 = {"Fast-AT": "fast-at", "AT (Salman)": "at-salman", **GENERALISTS}
# By study: what is printed, how recipes of that network or length end, and what stands beside it, no numbers
BESIDE = {"NT": "nt", "AT L2": "at-l2"}
TABLES: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    "cifar10/cvpr-table1-resnet18": (CVPR, "", {}),
    "cifar10/cvpr-table1-wrn": (CVPR, "-wrn", {}),
    "mnist/cvpr-table2": (CVPR_2, "", {"NT": "nt", "AT": "at-linf"}),
    "svhn/cvpr-table2": (CVPR_2, "", {"NT": "nt", "AT": "at-linf"}),
    "cifar100/cvpr-table3": (CVPR, "-200", {}),
    "cifar10/cvpr-table4": (CVPR_4, "", {"AT": "at-linf"}),
    "cifar10/plus-table1-resnet18": (PLUS, "", {**BESIDE, "RAMP": "ramp"}),
    "cifar10/plus-table1-wrn": (PLUS, "-wrn", {**BESIDE, "RAMP": "ramp"}),
    "cifar100/plus-table2-resnet18": (PLUS, "", {**BESIDE, "RAMP": "ramp"}),
    "cifar100/plus-table2-wrn": (PLUS, "-wrn", {**BESIDE, "RAMP": "ramp"}),
    "imagenet/plus-table3-resnet50": (PLUS_3, "", {**BESIDE, "AT": "at-linf"}),
    "imagenet/plus-table3-wrn": (PLUS_3, "-wrn", {**BESIDE, "AT": "at-linf"}),
}
UNSPLIT = {("imagenet/plus-table3-resnet50", label): {"pgd-20@Linf:4/255"} for label in GENERALISTS}
"""Columns that hold several rows in one cell."""
ABOVE_A_PART = {("cifar100/cvpr-table3", "AT", "apgd-t@Linf:8/255")}
"""Where AA is printed above an attack that it contains."""
FAR_APART = {
    ("cifar100/plus-table2-resnet18", "IAT"),
    ("cifar100/plus-table2-wrn", "AT (NT+Linf)"),
    ("cifar100/plus-table2-wrn", "AGR"),
}
"""Where PGD-20 and AA (L2) differ by more than 8 points, which no other row of any table does."""
IN_BOTH = {
    "AT": "AT",
    "AT (NT+Linf)": "AT (beta = 1/2)",
    "TRADES (beta = 1)": "TRADES (lambda = 1)",
    "FAT": "FAT",
    "IAT": "IAT",
    "Generalist-D NT+Linf": "Generalist",
}
"""What Generalist++ and the CVPR paper call the same method."""
DIFFER = {
    ("cifar10/plus-table1-resnet18", "AT (NT+Linf)"): {"natural"},
    ("cifar10/plus-table1-resnet18", "IAT"): {"natural"},
    ("cifar10/plus-table1-wrn", "IAT"): {"natural", "pgd-20@Linf:8/255", "aa@Linf:8/255"},
    ("cifar100/plus-table2-resnet18", "AT (NT+Linf)"): {"natural"},
}
"""Columns in which Generalist++ prints other numbers than the CVPR paper for what it calls the same."""
SHIFTED = ["cifar10/plus-table4", "cifar100/plus-table4"]
NETWORKS = {"ResNet-18": "", "WRN-34-10": "-wrn"}
CORRUPTED, PERTURBED = "corruptions severity 5 (official)", "perturbations all frames (official)"
WIDE_TRIPLE = {
    "cifar10": {CORRUPTED: 79.64, PERTURBED: 87.96},
    "cifar100": {CORRUPTED: 51.09, PERTURBED: 62.96},
}
"""The last row of Generalist++ Table IV, WRN."""


def rows(name: str) -> dict[str, str]:
    """The recipe of every row, by label."""
    return {point.label: point.recipe for point in Study.load(name).row}


def test_every_table_of_the_papers_is_there():
    assert {name for name in shipped_studies() if "table" in name} == {*TABLES, *SHIFTED}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_there_with_the_recipe_of_its_method(name: str):
    printed, ending, beside = TABLES[name]
    expected = {label: f"{name.partition('/')[0]}/{recipe}{ending}" for label, recipe in printed.items()}
    expected |= {label: f"{name.partition('/')[0]}/{recipe}{ending}" for label, recipe in beside.items()}
    if Recipe.load(expected["AT"]).epochs != 120:  # t' = 75 and c = 5 as printed
        expected = {label: f"{r}-literal" if "/generalist" in r else r for label, r in expected.items()}
    if name == "imagenet/plus-table3-wrn":  # no recipe of its own, the network is set
        expected["AT (Salman)"] = "imagenet/at-salman"
        sets = {point.label: point.sets for point in Study.load(name).row if point.sets}
        assert sets == {"AT (Salman)": ("model={ kind = 'wrn-50-2' }",)}
    found = rows(name)
    assert found == expected
    assert [label for label in found if label in printed] == list(printed)


@pytest.mark.parametrize("name", TABLES)
def test_numbers_stand_in_all_printed_columns_and_beside_printed_rows_alone(name: str):
    study = Study.load(name)
    assert list(study.paper_results()) == list(TABLES[name][0])
    columns = {"natural", *map(str, study.probes)}
    columns |= {"aa mean"} if "/plus-" in name else set()
    columns -= (
        {"aa@Linf:8/255"} if name == "cifar10/cvpr-table4" else set()
    )  # ours: the table has no AutoAttack
    for label, numbers in study.paper_results().items():
        assert numbers.keys() == columns - UNSPLIT.get((name, label), set())


@pytest.mark.parametrize("name", TABLES)
def test_printed_accuracy_under_aa_is_not_above_that_under_one_attack_but_where_known(name: str):
    above: set[tuple[str, str, str]] = set()
    for label, numbers in Study.load(name).paper_results().items():
        for column, number in numbers.items():
            whole = numbers.get(f"aa@{column.partition('@')[2]}", 0.0)
            above |= {(name, label, column)} if whole > number else set()
    assert above == {known for known in ABOVE_A_PART if known[0] == name}


@pytest.mark.parametrize("name", [name for name in TABLES if "/plus-" in name])
def test_printed_pgd_and_aa_are_close_in_l2_but_where_known(name: str):
    apart: set[tuple[str, str]] = set()
    for label, numbers in Study.load(name).paper_results().items():
        pgd, aa = (
            [n for c, n in numbers.items() if c.startswith(f"{attack}@L2")] for attack in ("pgd-20", "aa")
        )
        assert len(pgd) == len(aa) == 1
        apart |= {(name, label)} if pgd[0] - aa[0] > 8 else set()
    assert apart == {known for known in FAR_APART if known[0] == name}


@pytest.mark.parametrize(
    ("plus", "cvpr"),
    [
        ("cifar10/plus-table1-resnet18", "cifar10/cvpr-table1-resnet18"),
        ("cifar10/plus-table1-wrn", "cifar10/cvpr-table1-wrn"),
        ("cifar100/plus-table2-resnet18", "cifar100/cvpr-table3"),
    ],
)
def test_both_papers_print_the_same_of_the_same_method_but_where_known(plus: str, cvpr: str):
    later, earlier = Study.load(plus).paper_results(), Study.load(cvpr).paper_results()
    for label, before in IN_BOTH.items():
        common = later[label].keys() & earlier[before].keys()
        assert common == {"natural", "pgd-20@Linf:8/255", "aa@Linf:8/255"}
        differ = {column for column in common if later[label][column] != earlier[before][column]}
        assert differ == DIFFER.get((plus, label), set())


@pytest.mark.parametrize("name", SHIFTED)
def test_the_table_of_shifted_images_has_every_network_and_its_numbers(name: str):
    folder, study = name.partition("/")[0], Study.load(name)
    methods = {**PLUS, "RAMP": "ramp"}
    assert rows(name) == {
        f"{label}, {network}": f"{folder}/{recipe}{ending}"
        for network, ending in NETWORKS.items()
        for label, recipe in methods.items()
    }
    assert study.ood == ("c:5", "p")
    printed = study.paper_results()
    assert list(printed) == [f"{label}, {network}" for network in NETWORKS for label in PLUS]
    for numbers in printed.values():
        assert list(numbers) == [CORRUPTED, PERTURBED]
        assert numbers[CORRUPTED] < numbers[PERTURBED]
    assert printed["Generalist-T, WRN-34-10"] == WIDE_TRIPLE[folder]


def test_the_columns_of_shifted_images_are_those_of_an_outcome():
    shifts = parse_shifts(["c:5", "p"])
    probes = [str(ShiftId(shift.name, shift.kind, "official", shift.severity or 0)) for shift in shifts]
    assert [column_key(column) for column in average_columns(probes)] == [CORRUPTED, PERTURBED]


def test_the_table_of_times_has_the_papers_minutes():
    assert Study.load("cifar10/cvpr-table4").paper_minutes() == {"TRADES": 414, "Generalist": 397}


@pytest.mark.parametrize("method", [m for m in CVPR.values() if not m.startswith("generalist")])
def test_rows_of_200_epochs_differ_in_their_length_alone(method: str):
    long, plain = Recipe.load(f"cifar100/{method}-200"), Recipe.load(f"cifar100/{method}")
    assert long == replace(plain, epochs=200, name=long.name, about=long.about)
