"""The table of placement's figures has every section and is written where it belongs."""

from pathlib import Path

import pytest

from benchmarks.results_section import write_section
from tests.benchmark_runs import ROOT, run_benchmark


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    """Only what stands between the two comments changes, and all figures stand there."""
    path = tmp_path / "results.md"
    path.write_text("# Figures\n\nOwn words.\n")
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()

    first = run_benchmark("placement_table", "--quick", "--write", str(path), LIBRA_DATA="")
    never = run_benchmark("placement_table", "--quick", "--write", LIBRA_DATA="")

    assert not first.returncode, first.stderr
    assert not never.returncode, never.stderr
    assert path.read_text().startswith("# Figures\n\nOwn words.\n\n## Placement\n")
    assert first.stdout.strip() in path.read_text()
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == results
    for title in ("Evenness between pools", "Elastic pools", "Other ways", "Packing"):
        assert f"### {title}" in first.stdout
    assert "wlb (generator)" in first.stdout


def test_a_section_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """What stands before and after stays to the letter; a torn section is refused."""
    path = tmp_path / "results.md"
    write_section(path, "own", "first")
    text = path.read_text()
    path.write_text("before\n" + text + "after\n")

    write_section(path, "own", "second")

    assert path.read_text() == "before\n" + text.replace("first", "second") + "after\n"
    path.write_text("<!-- begin bench-own -->\n")
    with pytest.raises(ValueError, match="must hold <!-- begin bench-own --> and"):
        write_section(path, "own", "third")
