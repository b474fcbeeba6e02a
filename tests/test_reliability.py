"""docs/reliability.md claims nothing that no test shows."""

import re

import pytest

from tests.running import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    """A claim ends with its test: who renames or drops one is told here."""
    text = (ROOT / "tests" / file).read_text()

    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{file} has no {name}"


def test_every_report_has_an_address_an_answer_and_a_test() -> None:
    """Each line cites where it was reported and names at least one test."""
    assert len(ROWS) >= 36
    for row in ROWS:
        _, report, answer, tests, _ = row.split("|")
        assert re.search(r"\]\(https://github\.com/[^/]+/[^/]+/(issues|pull)/\d+\)", report), row
        assert answer.strip(), row
        assert re.search(r"`test_\w+\.py::test_\w+`", tests), row
