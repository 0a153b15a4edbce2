"""The live page in a real browser: it follows a training, and works without charts and on a phone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allrounder.cli.run_watch import make_routes
from allrounder.system.local_server import LocalServer
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study
from tests.support.trainings import PAIR, go, recipe

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SHOTS = os.environ.get("ALLROUNDER_SCREENSHOTS")
"""The folder for screenshots; none are taken without it."""
TRAINING = (
    *("train", "embedded/generalist-d-nt-linf", "--threads", "1"),
    *("--set", "epochs=3", "--set", "train_images=200", "--set", "validation.every=1"),
)
HOSTILE = '<img src=x onerror="document.title=1"><b>bold</b>'
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serve(folder: Path) -> Generator[str]:
    """Serve the page of a folder; its address."""
    with LocalServer(make_routes(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def visit(browser: Any, url: str, width: int = 1280, **settings: Any) -> Generator[Any]:
    """Open a page; at the end, nothing may have gone wrong on it."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.goto(url)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    context.close()
    assert problems == []


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


def test_the_page_follows_a_training(browser: Any, tmp_path: Path):
    folder = tmp_path / "run"
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    with serve(folder) as url, visit(browser, url) as page:
        page.locator("#phase", has_text="waiting").wait_for()
        assert "does not exist yet" in page.inner_text("#message")
        command = [sys.executable, "-m", "allrounder", *TRAINING, "--out", str(folder)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            page.locator("#phase", has_text="running").wait_for(timeout=120_000)
            progress = set[str]()
            while not page.locator("#phase", has_text="finished").is_visible():
                progress.add(page.get_attribute("#bar", "aria-valuenow"))
                page.wait_for_timeout(200)
            assert process.wait(timeout=60) == 0
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert progress - {"0", "100"}, "the bar moved before the end"
        assert page.get_attribute("#bar", "aria-valuenow") == "100"
        assert "3 of 3 epochs" in page.get_attribute("#bar", "aria-valuetext")
        page.locator(".js-plotly-plot").nth(3).wait_for()
        lines = page.locator("[data-name=loss] .scatterlayer .js-line")
        assert lines.count() == 2, "one for each learner"
        names = page.locator("[data-name=validation] .legendtext").all_text_contents()
        assert names == ["natural", "Linf:0.1", "L2:1.5"]
        assert page.locator("[data-name=validation] .shapelayer path").count() > 0, "exchanges are marked"
        titles = page.locator(".chart h2").all_inner_texts()
        assert titles == ["Validation accuracy", "Training loss", "Training accuracy", "Shares"]
        for number in range(4):  # panels become narrower when the next one appears
            panel = page.locator(".chart").nth(number).bounding_box()
            page.wait_for_function(
                "([number, width]) => document.querySelectorAll('.main-svg')[3 * number].clientWidth < width",
                arg=[number, panel["width"]],
            )
        page.locator("[data-name=loss] summary").click()
        rows = page.locator("[data-name=loss] tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["3", "2", "1"]
        shoot(page, "run-desktop")


def test_a_study_on_a_phone_shows_the_selected_training(browser: Any, tmp_path: Path):
    run_here(tiny_study(tmp_path), tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "fast" / "seed-1")
    (tmp_path / "out" / "slow" / "seed-1" / "recipe.toml").write_text("damaged")
    with serve(tmp_path / "out") as url, visit(browser, url, 390, color_scheme="dark") as page:
        page.locator(".js-plotly-plot").nth(2).wait_for()
        states = page.locator("#parts tbody tr td:nth-child(3)").all_inner_texts()
        assert states[0] == "evaluated" and states[-1] == "waiting", states
        assert [state for state in states if "recipe.toml" in state]
        numbers = page.locator("[data-name=loss] tbody")
        before = numbers.text_content()
        button = page.locator("#parts button").first
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        page.locator("#parts tr:first-child button[aria-pressed=true]").wait_for()
        assert numbers.text_content() != before
        assert page.evaluate("document.activeElement.tagName") == "BUTTON", "the focus stays"
        shoot(page, "study-phone")


def test_without_plotly_the_numbers_are_tables(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("allrounder.cli.run_watch.load_plotly", lambda: None)
    go(recipe(PAIR), tmp_path / "run")
    with serve(tmp_path / "run") as url, visit(browser, url) as page:
        page.locator("#hint").wait_for()
        assert 'pip install "allrounder[report]"' in page.inner_text("#hint")
        assert page.locator("[data-name=validation] tbody tr").first.is_visible()
        assert page.locator(".js-plotly-plot").count() == 0
        shoot(page, "tables-desktop")


def test_names_are_texts_and_never_tags(browser: Any, tmp_path: Path):
    text = PAIR.replace("epochs = 3", f"epochs = 3\nname = '{HOSTILE}'")
    folder = tmp_path / "<b>run</b>"
    go(recipe(text), folder)
    with serve(folder) as url, visit(browser, url) as page:
        page.locator(".js-plotly-plot").nth(3).wait_for()
        assert page.inner_text("#title") == HOSTILE
        assert page.locator("main img, main b, header b").count() == 0
        # The page asks for its data again and again, and then shows the true name.
        page.wait_for_function(
            """() => {
                state.charts[0].series[0].name = '<b>x</b>'; drawn = ''; showCharts();
                const name = document.querySelector('[data-name=validation] .legendtext');
                return name && name.textContent === '<b>x</b>';
            }"""
        )


def test_a_page_whose_server_ended_says_so(browser: Any, tmp_path: Path):
    with serve(tmp_path) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.locator("#phase", has_text="waiting").wait_for()
    page.locator("#phase", has_text="no answer").wait_for(timeout=30_000)
    assert "is allrounder watch still running?" in page.inner_text("#message")
    context.close()
