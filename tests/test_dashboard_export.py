"""Every view can be taken away: as figures, as a picture, and all of it as one file."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, OpenPage, adapt, expect_live

pytestmark = NEEDS_CHROMIUM

PANELS = ("skew", "heatmap", "pools", "whatif", "model", "exchange", "policies", "ranks")
WITH_PICTURES = {"skew", "heatmap", "model", "exchange"}


def download(page: Page, panel: str, way: str) -> bytes:
    """Return what a panel's export menu saves."""
    menu = page.locator(f"#{panel} details.menu")
    menu.locator("summary").click()
    with page.expect_download() as saved:
        menu.get_by_role("button", name=way).click()
    assert saved.value.suggested_filename.endswith(f".{way.lower()}")
    return Path(saved.value.path()).read_bytes()


@pytest.fixture
def page(feed: Feed, open_page: OpenPage) -> Page:
    adapt(feed)
    feed.run(4, policy=1)
    page = open_page(feed.job)
    expect_live(page)
    for panel in PANELS:
        expect(page.locator(f"#{panel}")).to_have_attribute("data-state", "ready")
    return page


def test_figures_are_those_of_the_api(page: Page, feed: Feed) -> None:
    """A row for each step, and the numbers as they were told, not as they are shown."""
    view = feed.balancer.view(f"{feed.job}/skew")
    head, *rows = csv.reader(io.StringIO(download(page, "skew", "CSV").decode()))
    assert head[:2] == ["step", "skew (slowest \u00f7 mean)"]
    assert [int(row[0]) for row in rows] == view["steps"]
    assert [float(row[1]) for row in rows] == view["skew"]

    body = json.loads(download(page, "skew", "JSON"))
    assert [row["skew"] for row in body["rows"]] == view["skew"]
    assert body["units"]["step time"] == "s"


def test_every_panel_can_be_taken_away(page: Page) -> None:
    """As CSV and JSON with as many rows, and as a picture."""
    for panel in PANELS:
        expect(page.locator(f"#{panel}")).to_have_attribute("data-state", "ready")
        lines = list(csv.reader(io.StringIO(download(page, panel, "CSV").decode())))
        rows = json.loads(download(page, panel, "JSON"))["rows"]
        assert len(lines) == len(rows) + 1 >= 2, panel
        picture = download(page, panel, "PNG")
        assert picture[:8] == b"\x89PNG\r\n\x1a\n", panel
        assert len(picture) > 1000, panel
        # Chromium asks before a page saves more than ten files.
        page.reload()
        expect(page.locator(f"#{panel}")).to_have_attribute("data-state", "ready")


def test_every_chart_has_a_table(page: Page) -> None:
    """A button brings the figures in place of the picture, and the address keeps that."""
    for panel in PANELS:
        page.locator(f"#{panel} button:text-is('Table')").click()
        table = page.locator(f"#{panel} .table-view table")
        expect(table).to_be_visible()
        expect(table.locator("tbody tr").first).to_be_attached()
        expect(page.locator(f"#{panel} .body")).to_be_hidden()
    assert all(panel in page.url for panel in PANELS)
    page.locator("#skew button:text-is('Table')").click()
    expect(page.locator("#skew-chart")).to_be_visible()


def test_the_report_is_one_file(page: Page, feed: Feed, browser: Browser, tmp_path: Path) -> None:
    """It opens without a balancer, asks nobody for anything, and says what the page says."""
    with page.expect_download() as saved:
        page.click("#report-button")
    report = tmp_path / "report.html"
    report.write_bytes(Path(saved.value.path()).read_bytes())
    text = report.read_text()
    assert not re.search(r"<script|<link|src=\"(?!data:)|url\(", text)

    asked: list[str] = []
    context = browser.new_context()
    opened = context.new_page()
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report.as_uri())
    summary = feed.balancer.view(feed.job)
    expect(opened.locator("h1")).to_have_text(f"Job {feed.job}")
    expect(opened.locator("body")).to_contain_text(summary["diagnosis"])
    expect(opened.locator("img")).to_have_count(len(WITH_PICTURES))
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth > 100)")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


def test_spreadsheets_run_nothing(page: Page) -> None:
    """A text that a spreadsheet would take for a formula is marked as text."""
    script = """async () => {
      const { asCsv } = await import(new URL("static/export.js", document.baseURI));
      const rows = [['=HYPERLINK("x","y")'], ["-1"], [-1]];
      return asCsv({ columns: [{ name: "reason" }], rows });
    }"""
    lines = page.evaluate(script).split("\r\n")
    assert lines == ["reason", '"\'=HYPERLINK(""x"",""y"")"', "'-1", "-1", ""]
