"""Cells to tensors in a loader's workers: planning and reading happen there, ahead of the step."""

from collections.abc import Callable

from numpy.typing import ArrayLike
from torch.utils.data import Dataset

from libra.agent.batch import Batch, build_batch
from libra.agent.cell import Cell
from libra.attention.layout import BatchLayout


class CellDataset(Dataset[tuple[Batch, BatchLayout]]):
    """Map a cell to its batch and layout.

    ``DataLoader(CellDataset(read_tokens), sampler=sampler, batch_size=None, num_workers=2)``
    yields one micro-batch of this rank after the other; so does ``StatefulDataLoader``.
    """

    def __init__(self, read_tokens: Callable[[int, int, int], ArrayLike]) -> None:
        """Args:
        read_tokens: gives the token ids of (document, begin, end); must pickle where workers
            are spawned.
        """
        self._read_tokens = read_tokens

    def __getitem__(self, index: Cell) -> tuple[Batch, BatchLayout]:
        """Return this rank's tensors of a cell, and the layout for the operator."""
        return build_batch(index, self._read_tokens), index.layout
