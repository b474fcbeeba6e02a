"""The page is of use to everyone: by keyboard or pointer, in light or dark, on a phone."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, OpenPage, adapt, expect_live
from tests.running import wait_for

pytestmark = NEEDS_CHROMIUM

# Of each part of a job's page, what it is worked by.
CONTROLS = (
    *("home-link", "theme", "from-step", "to-step", "compare-link", "report-button"),
    *("skew-chart", "heat-order", "heat", "exchange-share", "exchange-sent_bytes"),
    *("mode-button", "publish-button", "rollback-button", "rank-find", "rank-order"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_anyone(feed: Feed, open_page: OpenPage, scheme: str) -> None:
    """axe finds nothing that keeps anyone from using the page, in light or dark."""
    adapt(feed)
    feed.run(4, policy=1)
    page = open_page(feed.job, color_scheme=scheme)
    expect_live(page)
    expect(page.locator("#event-list li")).to_have_count(1)

    found = Axe().run(page).response["violations"]

    assert [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]] == []


def test_all_of_it_works_by_keyboard(feed: Feed, open_page: OpenPage) -> None:
    """Without a pointer every chart is reached, and any step and rank can be read."""
    page = open_page(feed.job)
    expect_live(page)
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    for name in CONTROLS:
        assert name in reached, name

    page.focus("#skew-chart")
    page.keyboard.press("Home")
    expect(page.locator("#skew-readout")).to_contain_text("Step 0:")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#skew-readout")).to_contain_text("Step 1:")

    slowdown = feed.balancer.view(f"{feed.job}/ranks")["slowdown"]
    page.focus("#heat")
    page.keyboard.press("Home")
    for key in ["ArrowUp"] * 4 + ["ArrowDown", "ArrowRight"]:
        page.keyboard.press(key)
    expected = f"Step 1, rank 1: {slowdown[1][1]:.2f} \u00d7 the mean"
    expect(page.locator("#heat-readout")).to_contain_text(expected)
    page.keyboard.press("Escape")
    expect(page.locator("#heat-readout")).to_contain_text("Step 15: slowest of 4")


def test_the_pointer_reads_the_heatmap(feed: Feed, open_page: OpenPage) -> None:
    """Pointing at a cell of the heatmap tells its step, rank and slowdown."""
    slowdown = feed.balancer.view(f"{feed.job}/ranks")["slowdown"]
    page = open_page(feed.job)
    expect_live(page)
    box = page.locator("#heat").bounding_box()
    assert box is not None

    page.locator("#heat").hover(
        position={"x": box["width"] * 3.5 / 16, "y": box["height"] * 2.5 / 4}
    )

    expected = f"Step 3, rank 2: {slowdown[3][2]:.2f} \u00d7 the mean"
    expect(page.locator("#heat-readout")).to_contain_text(expected)


def test_nothing_overflows_a_phone(feed: Feed, open_page: OpenPage) -> None:
    """On a phone 360 pixels wide nobody has to scroll sideways."""
    page = open_page(feed.job, viewport={"width": 360, "height": 740})
    expect_live(page)

    # Charts take the width of a box that was laid out anew a moment later.
    wait_for(lambda: page.evaluate("document.documentElement.scrollWidth") == 360)
