"""Which heads a rank holds after the head split: pure arithmetic, for any heads and any CP size.

Rank ``c`` of a CP group gets query heads ``c * H // C`` to ``(c + 1) * H // C`` and every kv head
that one of them reads. So kv heads are replicated where C exceeds them, and ranks carry unequal
numbers of heads where C does not divide H; with more ranks than heads some carry none.

Shapes: H query heads and G kv heads of the model; C ranks of a CP group.
"""

from dataclasses import dataclass
from typing import NamedTuple


class HeadRun(NamedTuple):
    """Consecutive kv heads of one rank that are each read by equally many of its query heads.

    Both ranges are counted from the rank's own first head.
    """

    head_begin: int
    head_end: int
    kv_begin: int
    kv_end: int

    @property
    def group(self) -> int:
        """Query heads for each kv head."""
        return (self.head_end - self.head_begin) // (self.kv_end - self.kv_begin)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSplit:
    """How a model's heads are divided among the ranks of a CP group.

    Attributes:
        query_heads: H.
        kv_heads: G; must divide H.
        cp: C.
    """

    query_heads: int
    kv_heads: int
    cp: int = 1

    def __post_init__(self) -> None:
        for name in ("query_heads", "kv_heads", "cp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.query_heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads}: must divide query_heads={self.query_heads}"
            )

    @property
    def group(self) -> int:
        """Query heads that read one kv head of the model."""
        return self.query_heads // self.kv_heads

    @property
    def even(self) -> bool:
        """Whether every rank carries equally many query heads, so that planes are alike."""
        return self.query_heads % self.cp == 0

    def query_range(self, cp_rank: int) -> tuple[int, int]:
        """Return the first and one past the last query head of a rank."""
        return (
            cp_rank * self.query_heads // self.cp,
            (cp_rank + 1) * self.query_heads // self.cp,
        )

    def kv_range(self, cp_rank: int) -> tuple[int, int]:
        """Return the first and one past the last kv head that a rank's query heads read."""
        begin, end = self.query_range(cp_rank)
        return (0, 0) if begin == end else (begin // self.group, (end - 1) // self.group + 1)

    def runs(self, cp_rank: int) -> tuple[HeadRun, ...]:
        """Return the rank's heads as runs of equal group size, in order; none without heads."""
        first, last = self.query_range(cp_rank)
        first_kv, last_kv = self.kv_range(cp_rank)
        runs: list[HeadRun] = []
        for kv in range(first_kv, last_kv):
            begin = max(first, kv * self.group) - first
            end = min(last, (kv + 1) * self.group) - first
            own = HeadRun(begin, end, kv - first_kv, kv - first_kv + 1)
            if runs and runs[-1].group == own.group:
                own = runs.pop()._replace(head_end=end, kv_end=own.kv_end)
            runs.append(own)
        return tuple(runs)
