"""Record which documents this rank was given, and hold all ranks' records against the steps'.

Shapes: n token ranges of documents that one rank was given.
"""

from typing import Any

import numpy as np
import torch.distributed as dist

from libra.agent.audit_report import AuditRecord, AuditReport, Drawn, Int64, merge
from libra.agent.cell import Cell
from libra.agent.resume import Position


class Audit:
    """What the sampler's iterations yield on this rank, from when it was switched on.

    A job that calls ``PoolSampler.cells`` itself adds the cells that it trains on. Where a loaded
    state goes back behind what was yielded, that is taken back, since it is yielded again.
    """

    def __init__(self, drawn: Drawn, *, dp_rank: int, cp_rank: int, micro_batches: int) -> None:
        """Begin with an empty record.

        Args:
            drawn: what steps should draw.
            dp_rank, cp_rank: this rank's coordinates.
            micro_batches: of a step on each rank.
        """
        self._drawn = drawn
        self._dp_rank, self._cp_rank = dp_rank, cp_rank
        self._micro_batches = micro_batches
        self._cells: list[tuple[int, int, Int64]] = []

    def add(self, cell: Cell) -> None:
        """Record a cell."""
        part = cell.segments
        # A copy: views would keep whole steps in memory.
        ranges = np.stack([part.document, part.begin, part.end])
        self._cells.append((cell.step, cell.micro_batch, ranges))

    def forget(self, position: Position) -> None:
        """Take back the cells from a position on."""
        first = (position.step, position.micro_batch)
        self._cells = [cell for cell in self._cells if cell[:2] < first]

    @property
    def record(self) -> AuditRecord:
        """This rank's record so far; it pickles."""
        cells = self._cells
        counts = [ranges.shape[1] for *_, ranges in cells]
        where = np.array([cell[:2] for cell in cells], dtype=np.int64).reshape(-1, 2)
        step, micro_batch = where.T
        ranges = np.concatenate([np.zeros((3, 0), np.int64), *(r for *_, r in cells)], axis=1)
        return AuditRecord(
            dp_rank=self._dp_rank,
            cp_rank=self._cp_rank,
            # Steps that were begun before recording, or are not ended, are not judged.
            first_step=cells[0][0] + (cells[0][1] > 0) if cells else 0,
            end_step=int((step + (micro_batch == self._micro_batches - 1)).max(initial=0)),
            step=_compact(np.repeat(step, counts)),
            micro_batch=_compact(np.repeat(micro_batch, counts)),
            document=_compact(ranges[0]),
            begin=_compact(ranges[1]),
            end=_compact(ranges[2]),
        )

    def report(self, records: list[AuditRecord], *, until: int | None = None) -> AuditReport:
        """Return what the records of all ranks come to; pure.

        Args:
            records: one of each rank.
            until: the first step not to judge, where loaders read ahead of what is trained; by
                default that after the last step that any rank has ended.
        """
        return merge(records, self._drawn, until=until)

    def gather(
        self, group: dist.ProcessGroup | None = None, *, until: int | None = None
    ) -> AuditReport:
        """Return what the records of all ranks of a group come to; collective, the same on all."""
        records: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(records, self.record, group=group)
        return self.report(records, until=until)


def _compact(values: Int64) -> np.ndarray[Any, Any]:
    """Return whole numbers in the smallest type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
