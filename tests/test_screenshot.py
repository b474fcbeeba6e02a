"""The screenshot tool takes pictures that are fit to be shown."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from tests.feed import Feed
from tests.pages import NEEDS_CHROMIUM, OpenPage, css_colour
from tests.running import ROOT

pytestmark = NEEDS_CHROMIUM


def test_screenshot_is_taken_of_the_drawn_page(
    feed: Feed, open_page: OpenPage, tmp_path: Path
) -> None:
    """The picture is of the drawn page, in the width and the colours that were asked for."""
    path = tmp_path / "page.png"
    url = f"{feed.balancer.url}/?job={feed.job}"
    command = [sys.executable, "-m", "libra.examples.screenshot", url, str(path)]
    subprocess.run([*command, "--width", "800", "--dark"], check=True, timeout=110, cwd=ROOT)

    pixels = np.rint(255 * imread(path, format="png")).astype(int)
    *even, _ = css_colour(open_page(feed.job, color_scheme="dark"), "--heat-0")

    assert pixels.shape[1] == 1600
    # Of the heatmap; the legend has far fewer, and a page that is not drawn yet has none.
    assert (pixels == even).all(axis=-1).sum() > 10_000
