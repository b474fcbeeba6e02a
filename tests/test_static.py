"""The page's files need no build, no other host and no inline code; vendored ones are untouched."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import libra.dashboard

STATIC = Path(libra.dashboard.__file__).parent / "static"
OWN = sorted(p for p in STATIC.iterdir() if p.suffix in {".html", ".css", ".js"})
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=")


def test_vendored_files_are_those_of_the_manifest() -> None:
    """Vendored files are, byte for byte, those of the release that their manifest names."""
    folders = list((STATIC / "vendor").iterdir())

    assert folders
    for folder in folders:
        manifest_path = folder / "manifest.json"
        manifest = json.loads(manifest_path.read_text())
        files = [path for path in folder.iterdir() if path != manifest_path]
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        assert manifest["sha256"] == sums
        assert manifest["version"] in (folder / "uPlot.esm.js").read_text()[:400]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_file_names_another_host_or_an_absolute_path(path: Path) -> None:
    """The page asks no host but its balancer, and works behind any path that a proxy puts first."""
    text = path.read_text()

    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text)
    assert not re.search(r"""(href|src)="/|from "/|fetch\("/""", text)


@pytest.mark.parametrize("path", [p for p in OWN if p.suffix == ".html"], ids=lambda p: p.name)
def test_pages_hold_no_inline_code_or_style(path: Path) -> None:
    """Pages hold no inline code or style: the content policy would block it."""
    assert not INLINE.search(path.read_text())


@pytest.mark.parametrize("path", [p for p in OWN if p.suffix == ".js"], ids=lambda p: p.name)
def test_scripts_never_read_markup_from_text(path: Path) -> None:
    """No script has a way to turn a report's words into markup or code."""
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()
    )
