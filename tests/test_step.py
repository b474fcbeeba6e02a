"""How the demo compares two runs of a step: the documents they saw, and their gradients."""

import math

import numpy as np
import torch

from libra.agent.cell import Cell
from libra.attention.heads import HeadSplit
from libra.balancer.packing import Segments
from libra.examples.step import hash_documents, largest_difference


def cell(*ranges: tuple[int, int, int]) -> Cell:
    """A cell of one sequence that holds token ranges (document, begin, end)."""
    document, begin, end = (
        np.array(column, dtype=np.int64) for column in zip(*ranges, strict=True)
    )
    return Cell(
        segments=Segments(document=document, begin=begin, end=end),
        lengths=(end - begin,),
        place=0,
        tokens=100,
        heads=HeadSplit(query_heads=1, kv_heads=1),
    )


def test_documents_are_compared_as_a_multiset() -> None:
    """Order and owner do not matter; another document, range or a repetition does."""
    a, b, c = (3, 0, 10), (4, 0, 10), (4, 10, 30)
    expected = hash_documents([cell(a, b), cell(c)])

    assert hash_documents([cell(c)]) + hash_documents([cell(b, a)]) == expected
    for other in ([cell(a, b)], [cell(a, b), cell(c, c)], [cell(a, a), cell(c)]):
        assert hash_documents(other) != expected
    assert hash_documents([cell((3, 0, 10))]) != hash_documents([cell((3, 1, 11))])


def test_the_worst_tensor_decides() -> None:
    """A small gradient that is quite wrong is not hidden by a large one that is right."""
    right = [torch.tensor([100.0, -50.0]), torch.tensor([1e-3, 2e-3])]
    wrong = [right[0].clone(), torch.tensor([1e-3, 1e-3])]
    broken = [torch.tensor([math.nan, 0.0]), right[1]]

    assert largest_difference(right, right) == 0
    assert math.isclose(largest_difference(wrong, right), 0.5, rel_tol=1e-6)
    assert math.isnan(largest_difference(broken, right))
