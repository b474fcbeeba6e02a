"""A job of 4,096 ranks: nothing of it is lost on a screen of a few hundred pixels."""

import math
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages import NEEDS_CHROMIUM, css_colour, expect_live, heat_pixels, watched_pages
from tests.running import running_balancer, wait_for
from tests.wide_feed import WideFeed

pytestmark = [*NEEDS_CHROMIUM, pytest.mark.timeout(600)]

RANKS, STEPS = 4096, 20
STRAGGLER, LIT = 2049, 5


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WideFeed]:
    """A job in which one rank is slow in one step."""
    path = tmp_path_factory.mktemp("wide") / "balancer.sqlite"
    with running_balancer(path) as running:
        feed = WideFeed(balancer=running, job="wide", world_size=RANKS)
        feed.run(LIT)
        # More would be longer than the step itself; and later on, a rank that alone says so, while
        # steps take no longer, is not believed.
        feed.slow[STRAGGLER] = 2.5
        feed.run()
        feed.slow.clear()
        feed.run(STEPS - LIT - 1)
        yield feed


@pytest.fixture
def page(browser: Browser, wide: WideFeed) -> Iterator[Page]:
    with watched_pages(browser, wide.balancer.url) as open_page:
        page = open_page(wide.job, viewport={"width": 1280, "height": 900})
        expect_live(page)
        yield page


def test_one_step_of_one_rank_is_seen(page: Page) -> None:
    """In 600 lines for 4,096 ranks its pixel is by far the darkest, and it alone."""
    pixels = heat_pixels(page)
    assert len(pixels) == 600
    assert len(pixels[0]) == STEPS
    line = STRAGGLER * 600 // RANKS
    lit = sum(pixels[line][LIT][:3])
    others = [
        sum(pixel[:3])
        for at, row in enumerate(pixels)
        for step, pixel in enumerate(row)
        if (at, step) != (line, LIT)
    ]
    even, hottest = (sum(css_colour(page, f"--heat-{end}")[:3]) for end in (0, 4))
    assert lit < hottest + 0.1 * (even - hottest)
    assert min(others) > lit + 0.3 * (even - hottest)


def test_it_is_named_by_pointer_and_keyboard(page: Page) -> None:
    """The cell's exact figures; a click opens the rank."""
    heat = page.locator("#heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    x = box["width"] * (LIT + 0.5) / STEPS
    # Pointers are at whole pixels of the window, and a line is one high.
    line = STRAGGLER * 600 // RANKS
    y = math.ceil(box["y"] + line) - box["y"]
    heat.hover(position={"x": x, "y": y})
    expect(page.locator("#heat-readout")).to_contain_text(f"rank {STRAGGLER}: ")

    heat.click(position={"x": x, "y": y})
    expect(page.locator("#rank-title")).to_have_text(f"Rank {STRAGGLER}")
    assert f"rank={STRAGGLER}" in page.url
    expect(page.locator("#rank-place")).to_contain_text(f"CP {STRAGGLER % 8}")


def test_a_new_step_is_added_to_the_picture(page: Page, wide: WideFeed) -> None:
    """One column more, and the picture of the others is as it was."""
    before = heat_pixels(page)
    wide.run()
    wait_for(lambda: len(heat_pixels(page)[0]) == len(before[0]) + 1)
    after = heat_pixels(page)
    assert [row[:-1] for row in after] == before


def test_the_order_of_rows_can_be_changed(page: Page) -> None:
    """Slowest first brings the ranks that are slow over all steps on top, and the URL keeps it."""
    page.select_option("#heat-order", "slowest")
    assert "order=slowest" in page.url
    ranks = wide_ranks(page)
    expect(page.locator("#heat-first-rank")).to_have_text(f"rank {ranks[0]}")
    expect(page.locator("#heat-last-rank")).to_have_text(f"rank {ranks[-1]}")


def wide_ranks(page: Page) -> list[int]:
    """Return the ranks by their mean slowdown, slowest first, as the API has it."""
    script = """async () => {
      const url = new URL("api/v1/jobs/wide/ranks?last=600", document.baseURI);
      const { slowdown } = await (await fetch(url)).json();
      const mean = slowdown[0].map((_, rank) => slowdown.reduce((sum, row) => sum + row[rank], 0));
      const order = mean.map((sum, rank) => [sum, rank]).sort((a, b) => b[0] - a[0]);
      return order.map(([, rank]) => rank);
    }"""
    ranks: list[int] = page.evaluate(script)
    return ranks
