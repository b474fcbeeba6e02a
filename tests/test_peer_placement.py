"""Other projects' planners are run from their checkouts, and judged by the cells they return."""

import sys
from pathlib import Path
from typing import Any

from benchmarks.peer_placement import PEERS
from tests.benchmark_runs import figures_of

SIZE = ("--n", "64", "--cells", "8", "--tokens", "2048")

_PLANNER = """
def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
    order = sorted(range(len(seqlen_list)), key=lambda own: seqlen_list[own])
    return [order[own::k_partitions] for own in range(k_partitions)]
"""


def _checkout(folder: Path, planner: str) -> Path:
    """Write a package whose top does not import, as where a GPU's libraries are missing."""
    package = folder / "openrlhf"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no GPU')\n")
    (package / "utils" / "__init__.py").write_text("raise ImportError('no GPU')\n")
    (package / "utils" / "seqlen_balancing.py").write_text(planner)
    return folder


def _peer(folder: Path) -> dict[str, Any]:
    only = ("--peers", "OpenRLHF", "--peer-path", str(folder))
    rows = figures_of("peers", *SIZE, *only)["planners"]
    found: dict[str, Any] = next(row for row in rows if row["planner"] == "OpenRLHF")
    return found


def test_a_peer_is_run_from_its_checkout(tmp_path: Path) -> None:
    """Its planner alone is imported, and its own cells are judged."""
    found = _peer(_checkout(tmp_path, _PLANNER))

    assert found["max/mean"] >= 1
    assert found["ms"] > 0


def test_a_peer_that_loses_a_sequence_has_no_figure(tmp_path: Path) -> None:
    """Cells that are not each sequence once are no placement."""
    found = _peer(_checkout(tmp_path, _PLANNER.replace("order[own::", "order[0::")))

    assert found["max/mean"] is None
    assert "not each sequence once" in found["note"]


def test_absent_peers_are_said_to_be_so() -> None:
    """Every planner has a row; those that are not here say that they are not installed."""
    rows = figures_of("peers", *SIZE)["planners"]

    notes = {row["planner"]: row["note"] for row in rows}
    assert set(PEERS) < set(notes)
    if not any(Path(folder, "magi_attention").is_dir() for folder in sys.path):
        assert notes["MagiAttention"] == "not installed"
    figures = {row["planner"]: row["max/mean"] for row in rows}
    assert figures["bound"] <= figures["Libra"] <= figures["longest first (Libra's paper)"]
    assert figures["bound"] <= figures["torch"]
