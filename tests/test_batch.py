"""What a user's reader of tokens gives is trained on as it is, or refused by name."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from libra.agent.batch import build_batch
from tests.coordinates import samplers

Read = Callable[[int, int, int], Any]

GOOD: dict[str, Read] = {
    "array": lambda document, begin, end: np.arange(begin, end),
    "narrow array": lambda document, begin, end: np.arange(begin, end).astype(np.uint16),
    "list": lambda document, begin, end: list(range(begin, end)),
    "range": lambda document, begin, end: range(begin, end),
    "tensor": lambda document, begin, end: torch.arange(begin, end),
}

BAD: dict[str, tuple[Read, str]] = {
    "scalar": (lambda document, begin, end: 7, "int64 of shape []"),
    "one token": (lambda document, begin, end: [7], "int64 of shape [1]"),
    "too few": (lambda document, begin, end: np.arange(begin, end - 1), "of shape [499]"),
    "too many": (lambda document, begin, end: np.arange(begin, end + 1), "of shape [501]"),
    "two dimensions": (lambda document, begin, end: np.ones((1, end - begin), int), "[1, 500]"),
    "floats": (lambda document, begin, end: np.ones(end - begin), "float64 of shape [500]"),
    "booleans": (lambda document, begin, end: np.ones(end - begin, bool), "bool of shape [500]"),
    "times": (lambda document, begin, end: np.ones(end - begin, "m8[s]"), "timedelta64[s] of"),
    "text": (lambda document, begin, end: "a" * (end - begin), "<U500 of shape []"),
    "nothing": (lambda document, begin, end: None, "object of shape []"),
    "ragged": (lambda document, begin, end: [[1], [1, 2]], "list, which is no array"),
}


@pytest.mark.parametrize("name", GOOD)
def test_integers_of_any_kind_are_token_ids(name: str) -> None:
    """Arrays, lists and tensors of the range's tokens make the same batch."""
    (cell, *_) = _cells()

    batch = build_batch(cell, GOOD[name])
    assert (batch.tokens == build_batch(cell, GOOD["array"]).tokens).all()
    assert batch.tokens.dtype == torch.int64
    assert batch.tokens.any()


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_the_tokens_of_the_range_is_refused(name: str) -> None:
    """One token is not repeated and no fraction cut; document, range and what came are named."""
    (cell, *_) = _cells()
    first = cell.segments.document[0]

    with pytest.raises(ValueError, match="must give 500 token ids") as error:
        build_batch(cell, BAD[name][0])
    asked = rf"read_tokens\(document={first}, begin=0, end=500\)"
    assert re.match(rf"{asked}.*{re.escape(BAD[name][1])}", str(error.value))


def _cells() -> list[Any]:
    return list(samplers(2, 2, global_batch=4, lengths=np.full(8, 500))[0])
