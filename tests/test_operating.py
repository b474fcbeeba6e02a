"""The documentation of operation is that of this code."""

import re
import tomllib
from pathlib import Path

import pytest

from libra.balancer import __main__ as command
from libra.balancer.config import load
from libra.balancer.config_table import with_table
from tests.running import ROOT

DOCUMENT = ROOT / "docs" / "operating.md"


def test_the_table_of_settings_is_up_to_date() -> None:
    """It has every setting, its default and its help, as the code has them."""
    text = DOCUMENT.read_text()

    assert with_table(text) == text, "run: python -m libra.balancer.config_table docs/operating.md"
    assert "| `port` | `--port` `LIBRA_PORT` | 8765 |" in text


def test_the_example_of_a_file_can_be_used(tmp_path: Path) -> None:
    """What a reader copies is accepted."""
    [example] = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "libra.toml"
    path.write_text(example)

    assert load({"config": str(path)}, {}).settings.service.mode == tomllib.loads(example)["mode"]


@pytest.mark.parametrize("document", ["operating.md", "access.md"])
def test_commands_of_the_document_exist(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command and every flag of it that is written down is one."""
    text = (DOCUMENT.parent / document).read_text()
    text = re.sub(r"<!-- settings.*/settings -->", "", text, flags=re.DOTALL)
    named = set(
        re.findall(r"(?:^ +|`|\b)libra ([a-z]+(?: (?:new|list|revoke)\b)?)", text, re.MULTILINE)
    )
    for name in sorted(named | {"serve"}):
        with pytest.raises(SystemExit) as ended:
            command.main([*name.split(), "--help"])
        assert ended.value.code == 0, name
    told = capsys.readouterr().out
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))

    assert {flag for flag in flags if not re.search(rf"{flag}\b", told)} == set()


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link of a page is a file, and what it names in it a heading."""
    pages = [*ROOT.glob("*.md"), *DOCUMENT.parent.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)\s]*)\)", page.read_text()):
            path, _, heading = target.partition("#")
            place = page.parent / path if path else page
            assert place.exists(), f"{page.name}: {target}"
            if heading:
                heads = re.findall(r"^#+ (.+)$", place.read_text(), re.MULTILINE)
                assert heading in {head.lower().replace(" ", "-") for head in heads}, target
