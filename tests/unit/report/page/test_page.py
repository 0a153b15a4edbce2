"""The page as a parser sees it: numbers, escapes, and that nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import StorageError
from allrounder.report.chart_table import chart_table
from allrounder.report.entry import Entry, Results
from allrounder.report.figures import FIGURES
from allrounder.report.page.page import TITLE, render_page, write_page
from allrounder.report.statistics import format_percent
from tests.support.pages import Element, parse_page
from tests.support.results import make_outcome, make_results, make_training

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>bold</b>",
    "<!-- <script>",
    "{{ 7 * 7 }} {% raw %} & ' `",
    "javascript:alert(1)",
]


@pytest.fixture(scope="module")
def results() -> Results:
    return make_results()


@pytest.fixture(scope="module")
def page(results: Results) -> Element:
    return parse_page(render_page(results))


def table_rows(page: Element) -> dict[str, list[Element]]:
    """The cells of the table of results, by row."""
    table = page.find("table", id="results-table")
    rows = [row for row in table.find_all("tr") if "data-row" in row.attributes]
    return {row.attributes["data-row"]: row.find_all("td") for row in rows}


def leading_number(cell: Element) -> str:
    """The number of a cell without its mark, deviation and interval."""
    found = re.match(r"[\d.]+|-", cell.text)
    assert found, cell.text
    return found[0]


def test_the_table_has_the_numbers_of_the_outcomes(page: Element, results: Results):
    header = page.find("table", id="results-table").cells()
    groups, titles = header[0], header[1]
    assert titles[0] == "row" and titles[-1] == "warnings"
    assert groups[1:4] == ["no attack", "AutoAttack", "pgd-20 upper bound"]
    for entry in results.entries:
        cells = dict(zip(titles[1:], table_rows(page)[entry.name], strict=True)) if entry.outcomes else {}
        for title, accuracy in (("natural", ("natural", None)), ("L2:1/2", ("aa@L2:1/2", None))):
            if entry.outcomes:
                mean = statistics.fmean(o.accuracy(*accuracy) for o in entry.outcomes.values())
                assert leading_number(cells[title]) == format_percent(mean)
                assert float(cells[title].attributes["data-sort"]) == mean
    natural = table_rows(page)["External"][0]
    low, high = results.entries[-1].outcomes[0].interval()
    assert natural.find("small", class_="interval").text == f"{format_percent(low)}-{format_percent(high)}"


def test_judge_columns_come_before_those_of_weaker_attacks(page: Element):
    groups = page.find("table", id="results-table").cells()[0]
    assert groups.index("AutoAttack") < groups.index("pgd-20 upper bound")


def test_a_row_without_outcome_has_no_numbers_and_sorts_last(page: Element):
    cells = table_rows(page)["Training"]
    assert {cell.text for cell in cells[:-1]} == {"-"} and cells[-1].text == "1"
    assert not [cell for cell in cells[:-1] if "data-sort" in cell.attributes]


def test_every_chart_is_followed_by_its_numbers(page: Element, results: Results):
    charts = [chart for kind in FIGURES.values() for chart in kind.build(results)]
    assert charts
    figures = page.find_all("figure")
    by_title: dict[tuple[str, str], list[Element]] = {}
    for figure in figures:
        key = figure.find("h3").text, figure.attributes.get("data-row", "")
        by_title.setdefault(key, []).append(figure)
    assert sum(map(len, by_title.values())) == len(charts)
    for chart in charts:
        figure = by_title[" ".join(chart.title.split()), chart.row].pop(0)
        header, rows = chart_table(chart)
        shown = figure.find("details", class_="numbers").find("table").cells()
        assert shown == [[" ".join(cell.split()) for cell in line] for line in (header, *rows)]
        assert figure.find("figcaption").text == " ".join(chart.about.split())
        assert figure.find("div", role="img").attributes["aria-label"].startswith(chart.title)


def test_plots_are_json_in_blocks_of_their_own(page: Element):
    for figure in page.find_all("figure"):
        (block,) = figure.find_all("script", type="application/json")
        assert block.attributes["id"] == figure.find("div", role="img").attributes["id"] + "-data"
        plot = json.loads(block.children[0]) if isinstance(block.children[0], str) else None
        assert plot and plot["data"] and "layout" in plot


@pytest.mark.parametrize("name", HOSTILE)
def test_markup_in_names_is_text_everywhere(name: str):
    problem = f"{name} is damaged"
    outcome = make_outcome()
    outcome = replace(outcome, facts={**outcome.facts, "flags": [f"flag {name}"], "attacks": {name: name}})
    training = replace(make_training(), recipe=f"# {name}", folder=name, state=name)
    hostile = Entry(name, {0: outcome}, {0: training}, cost=name, classes=(name, "b", "c", "d"))
    hostile = replace(hostile, problems=(problem,))
    plain = replace(hostile, name="row", problems=("problem",))
    text = render_page(Results((hostile, Entry("other", {0: make_outcome()}))), title=name)
    page = parse_page(text)
    tags = [element.tag for element in page.find_all("*")]
    plain_page = parse_page(render_page(Results((plain, Entry("other", {0: make_outcome()})))))
    assert tags == [element.tag for element in plain_page.find_all("*")]
    flat = " ".join(name.split())
    assert page.find("title").text == page.find("h1").text == flat
    assert page.find("table", id="results-table").find("tr", data_row=name).find("th").text == flat
    assert problem in page.find("section", id="warnings").text
    assert not [e for e in page.find_all("*") if any(key.startswith("on") for key in e.attributes)]
    assert not [e for e in page.find_all("*") if "<" in e.attributes.get("id", "")]
    for block in page.find_all("script", type="application/json"):
        assert not re.search("[<>]", block.text)


def test_nothing_is_loaded_from_elsewhere(page: Element):
    for element in page.find_all("*"):
        for key in ("src", "href", "action", "srcset", "data", "poster"):
            value = element.attributes.get(key, "#")
            assert value.startswith(("#", "data:")), (element.tag, value)
    policy = page.find("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "http" not in policy
    style = page.find("style").text
    assert "@import" not in style and "url(" not in style


def test_anchors_of_the_navigation_exist(page: Element):
    ids = [element.attributes["id"] for element in page.find_all("*") if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    links = [link.attributes["href"][1:] for link in page.find("nav").find_all("a")]
    assert links[:2] == ["summary", "warnings"] and links[-1] == "runs" and set(links) <= set(ids)
    assert links.index("figure-tradeoff") < links.index("results")


def test_equal_results_give_equal_bytes(results: Results, tmp_path: Path):
    write_page(results, tmp_path / "a.html")
    write_page(make_results(), str(tmp_path / "b.html"))
    first, second = ((tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second and f"<title>{TITLE}</title>".encode() in first


def test_a_page_that_cannot_be_written_names_its_file(results: Results, tmp_path: Path):
    with pytest.raises(StorageError, match=r"missing/a\.html: cannot be written"):
        write_page(results, tmp_path / "missing" / "a.html")


def test_controls_need_the_script(page: Element):
    assert "hidden" in page.find("button", id="theme").attributes
    assert "hidden" in page.find("form", id="filter").attributes
    assert not page.find("table", id="results-table").find_all("button")
    assert "below it" in page.find("noscript").text


def test_an_empty_report_is_a_page():
    text = parse_page(render_page(Results(()))).find("main").text
    assert "No row was evaluated" in text


@pytest.mark.slow
def test_fifty_rows_fit_on_a_page_and_their_charts_are_folded():
    page_text = render_page(make_results(rows=50, seeds=1))
    assert len(page_text) < 20e6
    page = parse_page(page_text)
    assert len(table_rows(page)) == 52
    folded = page.find_all("details", class_="row-charts")
    assert not [details for details in folded if "open" in details.attributes]
    assert "open" not in page.find("details", id="choose").attributes
