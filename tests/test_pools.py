"""The groups of a pooled job have the right ranks in the right order, on every kind of mesh."""

import os
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from libra.attention.pools import SequencePools
from libra.attention.shape import PoolShape, token_range
from libra.attention.store import default_store
from tests.ranks import run_ranks


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank knows, and the ranks that answer in each of its groups, in their order."""

    coordinates: tuple[int, int]
    pool: int
    place: int
    size: int
    plane: list[int]
    members: list[int]
    nodes: tuple[tuple[int, ...], tuple[int, ...]]


def _answering(group: dist.ProcessGroup) -> list[int]:
    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(ranks, torch.tensor([dist.get_rank()]), group=group)
    return [int(rank) for rank in ranks]


def _look(pools: SequencePools) -> Seen:
    plane, members = _answering(pools.plane_group), _answering(pools.pool_group)
    assert _answering(pools.plane_agreement_group) == plane
    assert _answering(pools.pool_agreement_group) == members
    assert dist.get_rank(pools.plane_group) == pools.place
    assert dist.get_rank(pools.pool_group) == pools.place * pools.shape.cp + pools.cp_rank
    assert dist.get_rank(pools.cp_group) == pools.cp_rank
    return Seen(
        coordinates=(pools.dp_rank, pools.cp_rank),
        pool=pools.pool,
        place=pools.place,
        size=pools.size,
        plane=plane,
        members=members,
        nodes=(pools.plane_nodes, pools.pool_nodes),
    )


def _uneven_pools(_: int) -> Seen:
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "cp"))
    return _look(SequencePools(mesh, 2, ranks_per_node=3))


@pytest.mark.dist
def test_a_last_pool_may_be_smaller() -> None:
    """Three CP groups in pools of two: planes and pools hold their own ranks, node by node."""
    seen = run_ranks(_uneven_pools, 6)

    assert [each.coordinates for each in seen] == [(r // 2, r % 2) for r in range(6)]
    assert [each.pool for each in seen] == [0, 0, 0, 0, 1, 1]
    assert [each.place for each in seen] == [0, 0, 1, 1, 0, 0]
    assert [each.size for each in seen] == [2, 2, 2, 2, 1, 1]
    assert [each.plane for each in seen] == [[0, 2], [1, 3], [0, 2], [1, 3], [4], [5]]
    assert [each.members for each in seen] == [[0, 1, 2, 3]] * 4 + [[4, 5]] * 2
    assert seen[1].nodes == ((0, 1), (0, 0, 0, 1))
    assert seen[5].nodes == ((1,), (1, 1))


def _outer_cp(_: int) -> Seen:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "dp"))
    return _look(SequencePools(mesh, 2, ranks_per_node=2))


@pytest.mark.dist
def test_the_dimensions_may_come_in_either_order() -> None:
    """With "cp" outermost a pool's group is still in the order of places, then of CP ranks."""
    seen = run_ranks(_outer_cp, 4)

    assert [each.coordinates for each in seen] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [each.plane for each in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [each.members for each in seen] == [[0, 2, 1, 3]] * 4
    assert [each.nodes for each in seen] == [((0, 0), (0, 1, 0, 1))] * 2 + [
        ((1, 1), (0, 1, 0, 1))
    ] * 2


def _stages(_: int) -> Seen:
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "pp", "cp"))
    stage = mesh.get_local_rank("pp")
    return _look(SequencePools(mesh["dp", "cp"], 2 - stage))


@pytest.mark.dist
def test_a_part_of_a_larger_mesh_has_its_own_pools() -> None:
    """Each pipeline stage pools its own ranks, and may do so in its own size."""
    seen = run_ranks(_stages, 4)

    assert [each.members for each in seen] == [[0, 2], [1], [0, 2], [3]]
    assert [each.plane for each in seen] == [[0, 2], [1], [0, 2], [3]]
    assert [each.coordinates for each in seen] == [(0, 0), (0, 0), (1, 0), (1, 0)]


def _refuse(rank: int) -> list[str]:
    ring = torch.arange(2)
    meshes = [
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "tp")), 1, None),
        (DeviceMesh("cpu", ring[:, None, None], mesh_dim_names=("dp", "cp", "tp")), 1, None),
        (DeviceMesh("cpu", ring.flip(0)[:, None], mesh_dim_names=("dp", "cp")), 1, None),
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "cp")), 3, None),
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "cp")), 0, None),
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "cp")), 1, 0),
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "cp")), 1 + rank, None),
    ]
    messages = []
    for mesh, size, per_node in meshes:
        with pytest.raises(ValueError, match="must") as raised:
            SequencePools(mesh, size, ranks_per_node=per_node)
        messages.append(str(raised.value))
    os.environ["LOCAL_WORLD_SIZE"] = "0"
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE=0: must be"):
        SequencePools(meshes[-1][0], 1)
    return messages


@pytest.mark.dist
def test_a_mesh_that_cannot_be_pooled_is_refused_on_every_rank() -> None:
    """Each error names the setting and what is allowed, and no rank is left waiting."""
    for rank, messages in enumerate(run_ranks(_refuse, 2)):
        assert [message.split(": must ")[0] for message in messages] == [
            "mesh_dim_names=('dp', 'tp')",
            "mesh_dim_names=('dp', 'cp', 'tp')",
            "mesh=[[1], [0]]",
            "sequences_per_pool=3",
            "sequences_per_pool=0",
            "ranks_per_node=0",
            f"sequences_per_pool={1 + rank}",
        ]
        assert messages[3].endswith("at most dp=2")


def _nodes_and_store(rank: int) -> tuple[list[tuple[int, ...]], str, bool]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "cp"))
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    pools = SequencePools(mesh, 2)
    if rank == 0:
        pools.store.set("said", "by rank 0")
    said = pools.store.get("said").decode()
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    given = HashStore()
    apart = SequencePools(mesh, 2, store=given)
    inside = SequencePools(mesh, 2, ranks_per_node=2)
    nodes = [each.plane_nodes for each in (pools, apart, inside)]
    return nodes, said, apart.store is given and pools.store is default_store()


@pytest.mark.dist
def test_nodes_and_store_are_the_launchers_unless_given() -> None:
    """All ranks are one node without ``LOCAL_WORLD_SIZE``; the store is the job's own."""
    expected = [(0, 0), (0, 1), (0, 0)]
    assert run_ranks(_nodes_and_store, 2) == [(expected, "by rank 0", True)] * 2


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
