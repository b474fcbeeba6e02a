"""A job without Libra's sampler gets the layouts that the sampler would have made."""

import numpy as np
import pytest
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch.distributed.device_mesh import init_device_mesh

from libra.attention.cu_seqlens import document_lengths, gather_layout
from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.plan import PlanSettings
from libra.attention.pools import SequencePools
from tests.ranks import run_ranks

CELL = [[300, 0, 12], [8] * 20]
HOW = PlanSettings(block_rows=16)


def _gather(rank: int, cp: int, elastic: bool) -> tuple[int, int, int, int]:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // cp, cp), mesh_dim_names=("dp", "cp"))
    pools = SequencePools(mesh, 1 if elastic else 2, largest_pool=2)
    place = pools.of(2).place
    lengths = CELL[place]
    layout = gather_layout(
        pools,
        np.cumsum([0, *lengths]),
        tokens=sum(lengths) + place,
        pool_size=2 if elastic else None,
        query_heads=4,
        kv_heads=4,
        settings=HOW,
        step=7,
    )
    return layout.digest, layout.plan.moved, layout.tokens, layout.cp_rank


@pytest.mark.dist
@pytest.mark.parametrize(("cp", "elastic"), [(1, False), (2, False), (2, True)])
def test_gathered_layouts_are_those_made_from_all_lengths(cp: int, elastic: bool) -> None:
    """Each rank knows its own documents only; together they plan what one who knows all would."""
    heads = HeadSplit(query_heads=4, kv_heads=4, cp=cp)
    cell = [np.array([300, 12]), np.full(20, 8)]
    expected = make_layout(
        cell, 0, tokens=[312, 161], heads=heads, settings=HOW, step=7, nodes=(0, 0)
    )

    got = run_ranks(_gather, 2 * cp, cp, elastic)

    assert expected.plan.moved
    for rank, (digest, moved, tokens, cp_rank) in enumerate(got):
        assert digest == expected.digest
        assert moved == expected.plan.moved
        assert (tokens, cp_rank) == ((312, 161)[rank // cp], rank % cp)


def test_positions_and_label_masks_follow_the_documents() -> None:
    """Positions start anew with each document, and its last token and padding predict nothing."""
    layouts = [
        make_layout(
            [[3, 1, 2]],
            0,
            tokens=8,
            heads=HeadSplit(query_heads=2, kv_heads=2, cp=3),
            cp_rank=cp_rank,
        )
        for cp_rank in range(3)
    ]

    assert [own.position_ids.tolist() for own in layouts] == [[0, 1], [2, 0, 0], [1, 0, 0]]
    assert [own.label_mask.tolist() for own in layouts] == [
        [True, True],
        [False, False, True],
        [False, False, False],
    ]


# numpy counts spans of time among integers.
SPANS = np.array([0, 1], "m8[s]")


@pytest.mark.parametrize("bad", [[], [1, 2], [0, 5, 4], [0.0, 1.0], [[0, 1]], SPANS])
def test_bad_cumulative_lengths_are_refused(bad: ArrayLike) -> None:
    """What no varlen kernel would take is an error that names itself."""
    with pytest.raises(ValueError, match="cu_seqlens"):
        document_lengths(bad)


def test_lengths_are_those_between_offsets() -> None:
    """Documents of no tokens, which padding of the list makes, are left out."""
    assert document_lengths([0, 3, 3, 7]).tolist() == [3, 4]
    assert document_lengths([0]).tolist() == []
