"""The rule of the soak, a short soak, and the index of a folder of many files."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import many_files, soak


def samples(values: list[float], name: str = "memory") -> list[dict[str, float]]:
    return [{**dict.fromkeys(soak.GAUGES, 5.0), name: value} for value in values]


def test_growth_is_found_in_the_second_half_only():
    assert soak.find_growth(samples([*range(0, 1000, 100), *[1000.0] * 10]))["memory"] == 0.0
    assert soak.find_growth(samples([0.0] * 10 + [2.0 * n for n in range(10)]))["memory"] == 20.0


def test_one_outlier_is_no_growth_and_a_slow_leak_is():
    assert soak.find_growth(samples([300.0] * 30 + [900.0]))["memory"] == 0.0
    leak = soak.find_growth(samples([5.0 + n // 5 for n in range(60)], "descriptors"))["descriptors"]
    assert leak >= soak.GAUGES["descriptors"][1]


def test_the_result_says_what_grows(capsys: pytest.CaptureFixture[str]):
    assert soak.print_result(samples([300.0] * 20))
    assert not soak.print_result(samples([float(n) for n in range(40)], "files"))
    assert capsys.readouterr().out.count("GROWS") == 1


@pytest.mark.slow
def test_a_short_soak_does_not_grow(tmp_path: Path):
    rounds = soak.soak(0.5, tmp_path / "soak", report=lambda line: None)
    grown = soak.find_growth(rounds)
    assert {name: grown[name] for name, (_, limit) in soak.GAUGES.items() if grown[name] >= limit} == {}


@pytest.mark.slow
def test_an_index_of_many_files_takes_few_bytes_of_each(tmp_path: Path):
    many_files.make_images(tmp_path, 20_000, 10)
    found = many_files.measure_index(tmp_path / "images")
    assert found["files"] == 20_000
    assert found["kept"] / found["files"] <= many_files.MAX_BYTES_PER_FILE
    assert found["peak"] / found["files"] <= 500
