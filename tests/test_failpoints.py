"""Places to fail are a closed list, and do nothing unless they are armed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from libra.balancer import __main__ as command
from libra.balancer import failpoints
from libra.balancer.failpoints import POINTS, VARIABLE, arm, failpoint
from libra.balancer.storage import StoreError
from tests.running import ROOT


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def test_nothing_happens_unless_it_is_armed() -> None:
    """All ordinary life."""
    for name in POINTS:
        failpoint(name)
    assert failpoints._armed == {}


def test_a_place_fails_from_the_pass_that_was_named() -> None:
    """``error`` and ``full`` are a store's errors, so that they go where those go."""
    arm("before_commit=full@3; during_restore=sleep(0)")
    for _ in range(2):
        failpoint("before_commit")
    failpoint("during_restore")
    for _ in range(2):
        with pytest.raises(StoreError, match="before_commit: database or disk is full"):
            failpoint("before_commit")


@pytest.mark.parametrize("text", ["before_comit=kill", "before_commit", "before_commit=die"])
def test_what_is_not_on_the_list_refuses_to_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A test that misses its place would pass for the wrong reason."""
    monkeypatch.setenv(VARIABLE, text)

    assert command.main(["serve", "--port", "0"]) == 2
    assert f"{VARIABLE}={text!r}" in capsys.readouterr().err


def test_every_name_has_its_place() -> None:
    """Each is passed somewhere in the balancer, and nothing passes one that is not listed."""
    code = "".join(path.read_text() for path in Path(ROOT, "balancer").glob("*.py"))

    assert set(re.findall(r'failpoint\("(\w+)"\)', code)) == set(POINTS)
