"""Take a picture of the dashboard with a headless Chromium.

    python -m libra.examples.screenshot http://127.0.0.1:8765/ dashboard.png --width 1280 --dark

Needs playwright and a Chromium on the PATH; downloads nothing.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM_ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
# The page asks again, after some 35 s, for a live stream that did not open in time.
TIMEOUT_S = 60.0


def find_chromium() -> str:
    """Return the path of the installed Chromium; raise ``FileNotFoundError`` without one."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise FileNotFoundError("chromium is not on the PATH: install it to take pictures")
    return path


def take_screenshot(url: str, path: Path, width: int, height: int, dark: bool) -> None:
    """Write a PNG of the page once it is live and its charts are drawn.

    Args:
        url: the balancer's address; may choose a job with ``?job=``.
        path: the file to write.
        width: of the window, in CSS pixels.
        height: of the picture in CSS pixels; 0 takes the whole page.
        dark: ask for the dark colour scheme.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), args=list(CHROMIUM_ARGS), timeout=1000 * TIMEOUT_S
        )
        try:
            page = browser.new_page(
                viewport={"width": width, "height": height or 900},
                color_scheme="dark" if dark else "light",
                device_scale_factor=2,
            )
            page.set_default_timeout(1000 * TIMEOUT_S)
            # Not "networkidle": the event stream of a live page never ends.
            page.goto(url)
            page.wait_for_selector("#skew[data-state=ready] canvas")
            page.wait_for_selector("#heatmap[data-state=ready] canvas")
            page.wait_for_selector("#badge[data-connection=live]")
            # What is out of sight is drawn last.
            page.wait_for_selector("#exchange[data-state=ready] canvas")
            page.screenshot(path=path, full_page=height == 0)
        finally:
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Take a picture of the dashboard.")
    parser.add_argument("url", help="the balancer's address, like http://127.0.0.1:8765/")
    parser.add_argument("path", type=Path, help="the PNG file to write")
    parser.add_argument("--width", type=int, default=1280, help="window width in CSS pixels")
    parser.add_argument("--height", type=int, default=0, help="picture height; 0: whole page")
    parser.add_argument("--dark", action="store_true", help="use the dark colour scheme")
    args = parser.parse_args()
    take_screenshot(args.url, args.path, args.width, args.height, args.dark)


if __name__ == "__main__":
    main()
