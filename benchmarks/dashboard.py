"""What the page of a large job costs a browser: script time, and memory over thousands of steps.

A real balancer holds a job of W ranks and S steps; a headless Chromium, which draws in software,
opens its page. first draw: taking in the slowdowns of all ranks and steps, and drawing them and
all else; event: taking in a step; draw: drawing the page after it; script a step: all that scripts
did meanwhile, fetching and drawing out of sight included, over the steps; heap: JavaScript's, after
a collection, at the end over that after the first tenth of the steps.

.venv/bin/python benchmarks/dashboard.py
.venv/bin/python benchmarks/dashboard.py --quick
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, CDPSession, Page, expect

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.results_section import write_section
from benchmarks.tables import Row, table
from tests.pages import TIMEOUT_MS, expect_live, running_browser
from tests.running import RunningBalancer, running_balancer
from tests.wide_feed import WideFeed

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_MIB = float(1 << 20)
_TABS = 8
# The page draws five times a second; steps come as fast as it can take them in one by one.
_BETWEEN_STEPS_S = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few ranks and steps, never into RESULTS.md")
    add("--ranks", type=int, nargs="+", default=[512, 4096])
    add("--history", type=int, default=600, help="steps before the page is opened (%(default)s)")
    add("--steps", type=int, default=2000, help="steps while it is open (%(default)s)")
    add("--write", action="store_true", help="into RESULTS.md as well")
    args = parser.parse_args()
    if args.quick:
        args.ranks, args.history, args.steps = [64], 30, 20
    with running_browser() as browser:
        rows = [measure(browser, ranks, args.history, args.steps) for ranks in args.ranks]
    where = f"{machine('playwright')}; Chromium {browser.version}, software rendering."
    print(where, table(rows), sep="\n\n")
    if args.write and not args.quick:
        write_section(RESULTS, "dashboard", f"{where}\n\n{table(rows)}", command="make bench-page")


def measure(browser: Browser, ranks: int, history: int, steps: int) -> Row:
    """Return the figures of a job of so many ranks."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_balancer(Path(folder) / "balancer.sqlite") as balancer,
    ):
        feed = WideFeed(balancer=balancer, job="wide", world_size=ranks)
        feed.run(history)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{balancer.url}/?job=wide")
        expect_live(page)
        first_ms = durations(page, "libra-merge")[0] + max(durations(page, "libra-draw"))
        clear(page)
        cdp = page.context.new_cdp_session(page)
        run = follow(feed, page, cdp, steps)
        page.close()
        return {
            "ranks": ranks,
            "steps": history,
            "first draw ms": first_ms,
            "steps added": steps,
            **run,
            "tabs live": tabs(browser, balancer, feed),
        }


def follow(feed: WideFeed, page: Page, cdp: CDPSession, steps: int) -> Row:
    """Add steps to an open page; return what they cost it."""
    warm_up = max(1, steps // 10)
    events: list[float] = []
    draws: list[float] = []
    heap_bytes, script_s = 0.0, 0.0
    for number in range(steps):
        if number == warm_up:
            collect(page, events, draws)
            events.clear()
            draws.clear()
            script_s, heap_bytes = metric(cdp, "ScriptDuration"), heap(cdp)
        feed.run()
        time.sleep(_BETWEEN_STEPS_S)
        if number % 100 == 99:
            collect(page, events, draws)
    newest = f"{feed.balancer.view(feed.job)['step']}"
    expect(page.locator("#skew-readout")).to_contain_text(newest)
    collect(page, events, draws)
    counted = steps - warm_up
    return {
        "event ms": float(np.median(events)),
        "event p99 ms": float(np.quantile(events, 0.99)),
        "draw ms": float(np.median(draws)),
        "draw p99 ms": float(np.quantile(draws, 0.99)),
        "script ms a step": 1e3 * (metric(cdp, "ScriptDuration") - script_s) / counted,
        "heap MiB": (heap_bytes or heap(cdp)) / _MIB,
        "heap grew MiB": (heap(cdp) - heap_bytes) / _MIB,
    }


def tabs(browser: Browser, balancer: RunningBalancer, feed: WideFeed) -> int:
    """Return how many of eight tabs of one browser are live and show the newest step."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(TIMEOUT_MS)
    pages = [context.new_page() for _ in range(_TABS)]
    for page in pages:
        page.goto(f"{balancer.url}/?job=wide")
    for page in pages:
        expect(page.locator("#connection")).to_have_text("live")
    feed.run()
    step = f"{balancer.view('wide')['step']}"
    for page in pages:
        expect(page.locator("#skew-readout")).to_contain_text(step)
    live = sum(page.locator("#connection").inner_text() == "live" for page in pages)
    context.close()
    return live


def durations(page: Page, name: str) -> list[float]:
    """Return the milliseconds of each measure of a name."""
    found: list[float] = page.evaluate(
        "(name) => performance.getEntriesByName(name).map(({ duration }) => duration)", name
    )
    return found


def clear(page: Page) -> None:
    page.evaluate("performance.clearMeasures()")


def collect(page: Page, events: list[float], draws: list[float]) -> None:
    """Move what the page has measured into the lists."""
    events += durations(page, "libra-step")
    draws += durations(page, "libra-draw")
    clear(page)


def metric(cdp: CDPSession, name: str) -> float:
    cdp.send("Performance.enable")
    metrics: list[dict[str, Any]] = cdp.send("Performance.getMetrics")["metrics"]
    return float(next(own["value"] for own in metrics if own["name"] == name))


def heap(cdp: CDPSession) -> float:
    """Return the bytes of JavaScript's heap after a collection."""
    cdp.send("HeapProfiler.collectGarbage")
    return metric(cdp, "JSHeapUsedSize")


if __name__ == "__main__":
    main()
