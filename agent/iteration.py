"""One pass over an epoch's cells, with the state of its own that stateful loaders keep."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from libra.agent.audit import Audit
from libra.agent.cell import Cell
from libra.agent.resume import Position
from libra.balancer.policy import Policy


class Source(Protocol):
    """What an iterator needs of its sampler.

    Attributes:
        recorder: takes the cells that are yielded; ``None`` when nobody audits.
        era: how often a state was loaded; what iterators of an earlier one still yield is theirs.
    """

    recorder: Audit | None
    era: int

    def begin(self, iterator: "CellIterator") -> None: ...
    def end_of(self, epoch: int) -> int: ...
    def agree(self, step: int) -> Policy: ...
    def cells(self, step: int, policy: Policy) -> list[Cell]: ...
    def state_at(self, position: Position) -> dict[str, Any]: ...
    def resume(self, state: Mapping[str, Any]) -> Position: ...


class CellIterator(Iterator[Cell]):
    """This rank's cells from a position to the end of its epoch.

    Attributes:
        position: of the cell that comes next.
    """

    def __init__(self, source: Source, position: Position) -> None:
        self.position = position
        self._source, self._era = source, source.era
        self._cells: deque[Cell] = deque()
        self._begun = False

    def __next__(self) -> Cell:
        if not self._begun:
            self._begun = True
            self._source.begin(self)
        if not self._cells:
            self._draw()
        cell = self._cells.popleft()
        epoch, step = self.position.epoch, self.position.step
        self.position = (
            Position(epoch=epoch, step=step, micro_batch=cell.micro_batch + 1)
            if self._cells
            else Position(epoch=epoch, step=step + 1)
        )
        recorder = self._source.recorder
        if recorder is not None and self._era == self._source.era:
            recorder.add(cell)
        return cell

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last cell yielded."""
        return self._source.state_at(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; raises as ``PoolSampler.load_state_dict``."""
        self.position = self._source.resume(state)
        self._cells.clear()

    def _draw(self) -> None:
        position = self.position
        if position.step >= self._source.end_of(position.epoch):
            raise StopIteration
        cells = self._source.cells(position.step, self._source.agree(position.step))
        self._cells.extend(cells[position.micro_batch :])
