"""One frame of ``libra top``: jobs with the course of their skew, or a job's slowest ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from libra.balancer.job_list import jobs_table
from libra.balancer.terminal import number_text, plain, sparkline
from libra.balancer.top_feed import MAX_STEPS, Seen

# Lines of a frame that are no rows.
_FURNITURE = 6
_STATES = ("active", "stale", "finished")
_SLOW, _VERY_SLOW = 1.05, 1.2


def jobs_frame(seen: Seen, *, url: str, connection: str, height: int) -> RenderableType:
    """Return all jobs, those that run first and the most uneven of them on top."""
    room = max(1, height - _FURNITURE)
    jobs = sorted(seen.jobs, key=_order)
    parts: list[RenderableType] = [_head(url, connection, seen.error), ""]
    parts.append(jobs_table(jobs[:room], seen.skews) if jobs else "No job has reported yet.")
    if len(jobs) > room:
        parts.append(f"[dim]and {len(jobs) - room} more[/]")
    return Group(*parts)


def job_frame(seen: Seen, *, url: str, connection: str, height: int) -> RenderableType:
    """Return one job and its slowest ranks."""
    parts: list[RenderableType] = [_head(url, connection, seen.error)]
    for job in seen.jobs:
        name = str(job["job"])
        parts += ["", _summary(job), plain(job.get("diagnosis") or ""), ""]
        parts.append(f"skew {sparkline(seen.skews.get(name, ()), MAX_STEPS)}")
        parts.append(ranks_table(seen.ranks, max(1, height - _FURNITURE - 6)))
    return Group(*parts)


def ranks_table(ranks: Sequence[Mapping[str, Any]], room: int) -> RenderableType:
    """Return the ranks whose kernels took longest in the newest step, against the mean rank."""
    measured = [rank for rank in ranks if rank.get("kernel_seconds") is not None]
    if not measured:
        return "[dim]No step is complete yet.[/]"
    mean = sum(rank["kernel_seconds"] for rank in measured) / len(measured)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("rank", "pool", "kernels", "of mean", "speed"):
        table.add_column(name, justify="right")
    table.add_column("node")
    table.add_column("not believed", overflow="fold")
    for rank in sorted(measured, key=lambda rank: -rank["kernel_seconds"])[:room]:
        share = rank["kernel_seconds"] / mean if mean > 0 else 1.0
        colour = "red" if share > _VERY_SLOW else "yellow" if share > _SLOW else "default"
        table.add_row(
            str(rank["rank"]),
            str(rank.get("pool", "-")),
            f"{1e3 * rank['kernel_seconds']:.1f} ms",
            f"[{colour}]{share:.2f}[/]",
            number_text(rank.get("speed")),
            plain(rank.get("node", "-")),
            plain(rank.get("doubt") or ""),
        )
    return table


def _summary(job: Mapping[str, Any]) -> str:
    ranks, world_size = job.get("ranks_reporting", 0), job.get("world_size", 0)
    return (
        f"[bold]{plain(job['job'])}[/]  {plain(job['state'])}, mode {plain(job.get('mode', '-'))}, "
        f"step {job.get('step')}, {ranks} of {world_size} ranks, "
        f"skew [bold]{number_text(job.get('skew'))}[/] "
        f"(plain Ulysses {number_text(job.get('home_skew'))}), "
        f"step time {number_text(job.get('step_seconds'), 3)} s, policy {job.get('policy_version')}"
    )


def _head(url: str, connection: str, error: str) -> Text:
    head = Text.assemble(("libra top", "bold"), f"  {url}  ")
    colour = {"live": "green", "polling": "yellow"}.get(connection, "red")
    head.append(connection, colour)
    if error:
        head.append(f": {error}; showing what was known")
    head.append("   q leaves", "dim")
    return head


def _order(job: Mapping[str, Any]) -> tuple[int, float, str]:
    state = str(job["state"])
    place = _STATES.index(state) if state in _STATES else len(_STATES)
    return place, -(job.get("skew") or 0.0), str(job["job"])
