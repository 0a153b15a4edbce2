"""A click through the report in Chromium. The pages are made of trainings and evaluations of a moment."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from allrounder.experiments.collect import read_results
from allrounder.report.entry import Results
from allrounder.report.gallery import Gallery
from allrounder.report.page.page import write_page
from tests.support.results import make_results
from tests.support.studies import run_here, tiny_study
from tests.unit.report.page.test_gallery_section import make_item

api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("chromium is missing: install it, such as Debian's package", allow_module_level=True)
pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\"><b>{{bold}}</b>"
DRAWN = "chart => chart.querySelector('.main-svg') !== null"
NO_ANIMATION = "document.documentElement.style.scrollBehavior = 'auto'"


@dataclass
class Visit:
    """A page in a browser, with everything that went wrong on it."""

    page: Any
    trouble: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the real results of a small study, rows made by hand that fill every figure, and a row
    whose name is markup."""
    folder = tmp_path_factory.mktemp("browser")
    run_here(tiny_study(folder), folder / "runs")
    real, made = read_results(folder / "runs"), make_results()
    hostile = replace(made.entries[0], name=HOSTILE, study="")
    results = Results((*real.entries, *made.entries, hostile), {**real.studies, **made.studies})
    gallery = Gallery((make_item("Row 0", "Row 1"), make_item("Row 1", HOSTILE)), "Two images.")
    path = folder / "report.html"
    write_page(results, path, gallery=gallery)
    return path


def visit(browser: Any, file: Path, width: int = 1280, **options: Any) -> Visit:
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    seen = Visit(page)
    page.on("console", lambda message: seen.trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.trouble.append(str(error)))
    page.on("requestfailed", lambda request: seen.trouble.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda request: _note_request(seen, request.url))
    page.goto(file.as_uri())
    return seen


def _note_request(seen: Visit, url: str) -> None:
    if not url.startswith(("file:", "data:", "blob:")):
        seen.trouble.append(f"requested: {url}")


@pytest.fixture
def seen(browser: Any, file: Path) -> Iterator[Visit]:
    """The page on a desktop; fails if the browser reports an error or any request."""
    seen = visit(browser, file)
    yield seen
    seen.page.close()
    assert seen.trouble == []


def shown_rows(page: Any) -> list[str]:
    return page.locator("#results-table tbody tr:visible th").all_inner_texts()


def scroll_to_the_end(page: Any) -> None:
    page.evaluate(NO_ANIMATION)
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height + 900, 800):
        page.evaluate(f"scrollTo(0, {top})")
        page.wait_for_timeout(50)


def wait_for(page: Any, condition: str, seconds: float = 60) -> None:
    """Wait until an expression is true; the page forbids the `eval` of Playwright's own function."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(100)


def wait_until_drawn(chart: Any) -> None:
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for(timeout=20_000)


def test_every_visible_chart_is_drawn_when_it_is_scrolled_to(seen: Visit):
    charts = seen.page.locator(".chart:visible")
    assert charts.count() > 10
    for number in range(charts.count()):
        wait_until_drawn(charts.nth(number))


def test_charts_in_folded_rows_are_drawn_when_opened(seen: Visit):
    page = seen.page
    group = page.locator("details.row-charts").first
    if group.get_attribute("open") is not None:
        group.locator("summary").first.click()
    chart = group.locator(".chart").first
    assert not chart.is_visible()
    group.locator("summary").first.click()
    wait_until_drawn(chart)


def test_the_table_is_sorted_by_mouse_and_by_keyboard(seen: Visit):
    page = seen.page
    heading = page.locator("#results-table th", has_text="natural").first
    numbers = "rows => rows.map(row => row.cells[1].dataset.sort).filter(text => text).map(Number)"

    def column() -> list[float]:
        return page.locator("#results-table tbody tr").evaluate_all(numbers)

    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True) and len(set(column())) > 2
    assert page.locator("#results-table tbody tr").last.locator("th").inner_text() == "Training"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending" and column() == sorted(column())
    assert page.locator("#results-table tbody tr").last.locator("th").inner_text() == "Training"
    page.locator("#results-table th button", has_text="row").first.click()
    assert page.locator("#results-table [aria-sort]").count() == 1
    names = shown_rows(page)
    assert names.index("Row 0") < names.index("Row 1") < names.index("Row 2") < names.index("slow")


def test_the_filter_hides_rows_everywhere(seen: Visit):
    page = seen.page
    chart = page.locator("#figure-tradeoff .chart").first
    wait_until_drawn(chart)
    visible = "chart => chart.data.filter(t => t.visible !== false && t.meta?.row).map(t => t.meta.row)"
    before = chart.evaluate(visible)
    assert {"Row 0", "Row 1"} <= set(before)
    page.locator("#filter label", has_text=re.compile("^Row 1$")).click()
    wait_for(page, "!document.querySelector('#results-table tr[data-row=\"Row 1\"]').checkVisibility()")
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    assert "Row 1" not in chart.evaluate(visible) and "Row 0" in chart.evaluate(visible)
    assert page.locator("[data-row='Row 1']:visible").count() == 0
    page.fill("#search", "row")
    assert shown_rows(page) == ["Row 0", "Row 2"]
    assert re.match(r"2 of \d+ rows shown", page.inner_text("#shown"))
    page.click("#none")
    assert shown_rows(page) == []
    page.click("#all")
    page.fill("#search", "")
    assert len(shown_rows(page)) == page.locator("#filter input[type=checkbox]").count()
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    assert chart.evaluate(visible) == before


def test_columns_of_numbers_follow_the_filter(seen: Visit):
    page = seen.page
    heading = page.locator("th[data-column='Row 1']").first
    heading.evaluate("heading => { heading.closest('details').open = true; }")
    assert heading.is_visible()
    page.fill("#search", "Row 0")
    assert not heading.is_visible() and page.locator("th[data-column='Row 0']:visible").count() > 0


def test_the_theme_follows_the_system_and_the_button(browser: Any, file: Path):
    for scheme in ("light", "dark"):
        seen = visit(browser, file, color_scheme=scheme)
        page = seen.page
        button, chart = page.locator("#theme"), page.locator(".chart").first
        wait_until_drawn(chart)
        color = "chart => getComputedStyle(chart.querySelector('.xtick text')).fill"
        background = "getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(background), chart.evaluate(color)
        assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
        button.click()
        assert button.get_attribute("aria-pressed") == str(scheme == "light").lower()
        chart.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        second = page.evaluate(background), chart.evaluate(color)
        assert first[0] != second[0] and first[1] != second[1]
        page.close()
        assert seen.trouble == []


def test_an_image_of_the_gallery_is_hidden_with_its_rows(seen: Visit):
    page = seen.page
    cards = page.locator(".card:visible")
    assert cards.count() == 2
    page.fill("#search", "Row 0")
    assert cards.count() == 1 and cards.locator("[data-row]:visible").count() == 1
    page.fill("#search", "Row 2")
    assert cards.count() == 0


def test_details_open_with_the_keyboard(seen: Visit):
    page = seen.page
    run = page.locator("details.run").first
    run.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert run.get_attribute("open") is not None
    run.locator("summary", has_text="Recipe").first.click()
    assert "objective" in run.locator("pre").first.inner_text()
    numbers = page.locator("details.numbers").first
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()


def test_the_first_key_reaches_the_skip_link(seen: Visit):
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_itself_never_scrolls_sideways(browser: Any, file: Path, width: int):
    seen = visit(browser, file, width)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    seen.page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    scroll_to_the_end(seen.page)
    assert seen.page.evaluate(overflow) <= 0
    table = seen.page.locator("#results .scroll")
    assert table.evaluate("frame => frame.scrollWidth > frame.clientWidth")
    table.evaluate("frame => { frame.scrollLeft = 400; }")
    left = "cell => cell.getBoundingClientRect().left - cell.closest('.scroll').getBoundingClientRect().left"
    assert abs(seen.page.locator("#results tbody th").first.evaluate(left)) < 3
    seen.page.close()
    assert seen.trouble == []


def test_without_javascript_numbers_are_readable(browser: Any, file: Path):
    seen = visit(browser, file, java_script_enabled=False)
    page = seen.page
    assert page.locator("noscript p").is_visible()
    assert page.locator("button:visible, input:visible").count() == 0
    assert page.locator(".chart:visible").count() == 0
    numbers = page.locator("details.numbers").first
    numbers.locator("summary").click()
    assert re.search(r"\d+\.\d", numbers.locator("table").inner_text())
    assert len(shown_rows(page)) > 5
    page.close()
    assert seen.trouble == []


@pytest.mark.parametrize("script", [True, False])
def test_print_shows_all_numbers_and_no_controls(browser: Any, file: Path, script: bool):
    seen = visit(browser, file, color_scheme="dark", java_script_enabled=script)
    page = seen.page
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_timeout(200)
    assert page.locator("button#theme:visible, aside:visible").count() == 0
    tables = page.locator("details.numbers table")
    assert tables.count() > 10 and tables.first.is_visible() and tables.last.is_visible()
    assert len(page.pdf()) > 50_000
    page.close()
    assert seen.trouble == []


def test_before_print_every_chart_is_drawn_in_light_colours(browser: Any, file: Path):
    seen = visit(browser, file, color_scheme="dark")
    page = seen.page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(f"[...document.querySelectorAll('.chart')].every({DRAWN})")
    assert page.locator("details:not([open])").count() == 0
    widths = "charts => [...new Set(charts.map(chart => chart._fullLayout.width))]"
    assert page.locator(".chart").evaluate_all(widths) == [640]
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert page.locator("details:not([open])").count() > 5
    chart = page.locator("#figure-tradeoff .chart").first
    chart.scroll_into_view_if_needed()
    wait_for(page, "document.querySelector('#figure-tradeoff .chart')._fullLayout.width > 640")
    page.close()
    assert seen.trouble == []


def test_a_hostile_name_is_text(seen: Visit):
    page = seen.page
    assert page.title() != "hacked" and page.locator("img[src=x]").count() == 0
    assert HOSTILE in shown_rows(page)
    chart = page.locator("#figure-tradeoff .chart").first
    wait_until_drawn(chart)
    names = chart.locator(".legendtext").all_text_contents()
    assert any("<b>{{bold}}</b>" in name for name in names), names
    scroll_to_the_end(page)
    assert page.locator("img[src=x], main b").count() == 0


def test_fifty_runs_load_and_filter(browser: Any, tmp_path: Path):
    path = tmp_path / "fifty.html"
    write_page(make_results(rows=50, seeds=1, images=200), path)
    assert path.stat().st_size < 20e6
    seen = visit(browser, path)
    page = seen.page
    wait_until_drawn(page.locator(".chart").first)
    page.fill("#search", "Row 1")
    assert len(shown_rows(page)) == 11
    page.fill("#search", "")
    assert len(shown_rows(page)) == 52
    scroll_to_the_end(page)
    page.close()
    assert seen.trouble == []
