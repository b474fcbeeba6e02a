"""How a mesh is cut into pools and shards: pure arithmetic, the same on every rank."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.attention.shape import PoolShape, token_range


@st.composite
def _elastic(draw: st.DrawFn) -> PoolShape:
    """Draw a mesh with elastic pools, where they have room."""
    dp = draw(st.integers(1, 40))
    per_pool = draw(st.integers(1, dp))
    doublings = draw(st.integers(0, (dp // per_pool).bit_length() - 1))
    return PoolShape(dp=dp, cp=1, sequences_per_pool=per_pool, largest_pool=per_pool << doublings)


@given(_elastic())
def test_elastic_pools_are_doublings_of_the_fixed_ones(shape: PoolShape) -> None:
    """Sizes double from P to the largest, and each is where as many neighbours are there."""
    sizes = shape.pool_sizes
    assert sizes[0] == shape.sequences_per_pool
    assert sizes[-1] == shape.largest_pool
    assert all(larger == 2 * size for size, larger in pairwise(sizes))
    for dp_rank in range(shape.dp):
        blocks = shape.blocks(dp_rank)
        fitting = [size for size in sizes[1:] if dp_rank // size < shape.dp // size]

        assert blocks[0] == shape.dp_ranks(shape.pool(dp_rank))
        assert [len(block) for block in blocks[1:]] == fitting
        assert all(dp_rank in block and block.stop <= shape.dp for block in blocks)
        assert all(shape.block(dp_rank, len(block)) == block for block in blocks)


@given(_elastic())
def test_any_two_pools_are_apart_or_one_holds_the_other(shape: PoolShape) -> None:
    """So ranks can be in pools of different sizes at once, and none in two of them."""
    blocks = {block for dp_rank in range(shape.dp) for block in shape.blocks(dp_rank)}
    for one in map(set, blocks):
        for other in map(set, blocks):
            assert one <= other or other <= one or not one & other


@given(_elastic(), st.integers(0, 50))
def test_a_size_that_is_not_there_is_refused(shape: PoolShape, size: int) -> None:
    """The message names the sizes that there are at this place."""
    for dp_rank in range(shape.dp):
        sizes = [len(block) for block in shape.blocks(dp_rank)]
        if size not in sizes:
            with pytest.raises(ValueError, match=rf"size={size}: must be {sizes[0]}\b") as raised:
                shape.block(dp_rank, size)
            assert " or ".join(map(str, sizes)) in str(raised.value)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(-40, 40))
def test_a_largest_pool_is_p_doubled_or_refused(dp: int, per_pool: int, largest: int) -> None:
    """0 is off; other numbers, and pools of more CP groups than there are, are errors."""
    per_pool = min(per_pool, dp)
    allowed = [0, *(per_pool << doublings for doublings in range(6))]
    if largest in allowed and largest <= dp:
        shape = PoolShape(dp=dp, cp=1, sequences_per_pool=per_pool, largest_pool=largest)
        assert max(shape.pool_sizes) == (largest or per_pool)
    else:
        with pytest.raises(ValueError, match=f"largest_pool={largest}: must be 0 or"):
            PoolShape(dp=dp, cp=1, sequences_per_pool=per_pool, largest_pool=largest)


@given(_elastic())
def test_without_elastic_pools_there_are_the_fixed_ones_only(shape: PoolShape) -> None:
    """Off, and as large as P, are the same."""
    for largest in (0, shape.sequences_per_pool):
        fixed = PoolShape(
            dp=shape.dp,
            cp=1,
            sequences_per_pool=shape.sequences_per_pool,
            largest_pool=largest,
        )
        for dp_rank in range(shape.dp):
            assert fixed.blocks(dp_rank) == (shape.dp_ranks(shape.pool(dp_rank)),)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4))
def test_pools_share_out_the_cp_groups(dp: int, per_pool: int, micro_batches: int) -> None:
    """Each CP group has one place in one pool, and a step's cells have a slot for each of them."""
    shape = PoolShape(dp=dp, cp=1, sequences_per_pool=min(per_pool, dp))
    for dp_rank in range(dp):
        assert shape.dp_ranks(shape.pool(dp_rank))[shape.place(dp_rank)] == dp_rank
    sizes = [shape.pool_size(pool) for pool in range(shape.num_pools)]

    assert sum(sizes) == dp
    assert sizes[:-1] == [shape.sequences_per_pool] * (shape.num_pools - 1)
    assert 1 <= sizes[-1] <= shape.sequences_per_pool
    assert shape.cell_sizes(dp * micro_batches) == tuple(sizes * micro_batches)


def test_a_step_that_leaves_cp_groups_without_a_sequence_is_refused() -> None:
    """A step's sequences are a multiple of the CP groups, whatever the pools."""
    with pytest.raises(ValueError, match=r"num_sequences=4: must be a multiple of dp=3"):
        PoolShape(dp=3, cp=1, sequences_per_pool=2).cell_sizes(4)


@given(st.integers(0, 100), st.integers(1, 9))
def test_shards_cover_the_tokens_in_order(tokens: int, cp: int) -> None:
    """Shards follow one another without a gap, and differ by one token at most."""
    shards = [token_range(tokens, rank, cp) for rank in range(cp)]
    lengths = [end - begin for begin, end in shards]

    assert [begin for begin, _ in shards] == [0, *(end for _, end in shards[:-1])]
    assert shards[-1][1] == tokens
    assert max(lengths) - min(lengths) <= 1
