"""The groups of a pooled job have the right ranks in the right order, on every kind of mesh."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from libra.attention.pools import SequencePools
from libra.attention.store import default_store
from tests.ranks import run_ranks
from tests.workers import RankWorkers

WorkerRanks = Callable[[int], RankWorkers]


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


def _look(pools: SequencePools, size: int | None = None) -> Seen:
    pool = pools.of(size or pools.size)
    plane, members = _answering(pool.plane_group), _answering(pool.pool_group)
    assert _answering(pool.plane_agreement_group) == plane
    assert _answering(pool.pool_agreement_group) == members
    assert dist.get_rank(pool.plane_group) == pool.place
    assert dist.get_rank(pool.pool_group) == pool.place * pools.shape.cp + pools.cp_rank
    assert dist.get_rank(pools.cp_group) == pools.cp_rank
    if size is None:
        assert (pools.place, pools.plane_nodes) == (pool.place, pool.plane_nodes)
        assert pools.pool_nodes == pool.pool_nodes
    return Seen(
        coordinates=(pools.dp_rank, pools.cp_rank),
        pool=pools.pool,
        place=pool.place,
        size=pool.size,
        plane=plane,
        members=members,
        nodes=(tuple(pool.plane_nodes), tuple(pool.pool_nodes)),
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
    fixed = _look(SequencePools(mesh, 2, ranks_per_node=2))
    elastic = SequencePools(mesh, 1, largest_pool=2, ranks_per_node=2)
    assert replace(_look(elastic, 2), pool=fixed.pool) == fixed
    return fixed


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
    pools = SequencePools(mesh["dp", "cp"], 2 - stage, largest_pool=2 * stage)
    assert _look(pools, 2).members == [stage, 2 + stage]
    return _look(pools)


@pytest.mark.dist
def test_a_part_of_a_larger_mesh_has_its_own_pools() -> None:
    """Each pipeline stage pools its own ranks, and may do so in its own size."""
    seen = run_ranks(_stages, 4)

    assert [each.members for each in seen] == [[0, 2], [1], [0, 2], [3]]
    assert [each.plane for each in seen] == [[0, 2], [1], [0, 2], [3]]
    assert [each.coordinates for each in seen] == [(0, 0), (0, 0), (1, 0), (1, 0)]


def _elastic(_: int) -> tuple[Seen, Seen | None]:
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "cp"))
    pools = SequencePools(mesh, 1, largest_pool=2, ranks_per_node=3)
    return _look(pools), _look(pools, 2) if 2 in pools.sizes else None


@pytest.mark.dist
def test_elastic_pools_stand_beside_the_fixed_ones() -> None:
    """Of three CP groups two make a larger pool, with its own places, planes and nodes."""
    fixed, larger = zip(*run_ranks(_elastic, 6), strict=True)

    assert [each.members for each in fixed] == [[0, 1]] * 2 + [[2, 3]] * 2 + [[4, 5]] * 2
    assert [each.place for each in fixed] == [0] * 6
    assert larger[4:] == (None, None)
    assert [each.place for each in larger[:4]] == [0, 0, 1, 1]
    assert [each.plane for each in larger[:4]] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [each.members for each in larger[:4]] == [[0, 1, 2, 3]] * 4
    assert [each.nodes for each in larger[:2]] == [((0, 0), (0, 0, 0, 1)), ((0, 1), (0, 0, 0, 1))]


def _two_failures(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "cp"))
    pools = SequencePools(mesh, 1, largest_pool=2)
    if rank:
        return []
    return [str(pools.of(size).roll_call.explain(KeyError(size))) for size in pools.sizes]


@pytest.mark.dist
def test_what_fails_in_one_pool_is_not_told_in_another(worker_ranks: WorkerRanks) -> None:
    """Pools of different sizes that begin with the same rank call their own rolls."""
    messages, _ = worker_ranks(2).run(_two_failures)

    assert [message.split("KeyError: ")[1] for message in messages] == ["1", "2"]


def _made(_: int, shape: tuple[int, int], options: dict[str, Any]) -> list[list[int]]:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "cp"))
    with mock.patch.object(dist, "new_group", wraps=dist.new_group) as new_group:
        SequencePools(mesh, **options)
    return [call.args[0] for call in new_group.call_args_list]


FIXED = [[0], [1], [2], [3], [0, 1], [2, 3]]
MADE: list[tuple[tuple[int, int], dict[str, Any], list[list[int]]]] = [
    ((2, 2), {"sequences_per_pool": 1}, FIXED),
    ((2, 2), {"sequences_per_pool": 1, "largest_pool": 1}, FIXED),
    (
        (2, 2),
        {"sequences_per_pool": 1, "largest_pool": 2},
        [[0], [1], [0, 2], [1, 3], [2], [3], [0, 1], [0, 1, 2, 3], [2, 3]],
    ),
    ((4, 1), {"sequences_per_pool": 2}, [[0, 1], [2, 3]]),
    ((4, 1), {"sequences_per_pool": 2, "largest_pool": 4}, [[0, 1], [0, 1, 2, 3], [2, 3]]),
    ((4, 1), {"sequences_per_pool": 3}, [[0, 1, 2], [3]]),
]


@pytest.mark.dist
@pytest.mark.parametrize(("shape", "options", "expected"), MADE)
def test_no_group_is_made_that_no_pool_needs(
    worker_ranks: WorkerRanks,
    shape: tuple[int, int],
    options: dict[str, Any],
    expected: list[list[int]],
) -> None:
    """Without elastic pools, planes and then pools; with them, less than twice as many."""
    assert worker_ranks(4).run(_made, shape, options) == [expected] * 4


def _refuse(rank: int) -> list[str]:
    ring = torch.arange(2)
    good = DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "cp"))
    calls: list[tuple[DeviceMesh, int, dict[str, Any]]] = [
        (DeviceMesh("cpu", ring[:, None], mesh_dim_names=("dp", "tp")), 1, {}),
        (DeviceMesh("cpu", ring[:, None, None], mesh_dim_names=("dp", "cp", "tp")), 1, {}),
        (DeviceMesh("cpu", ring.flip(0)[:, None], mesh_dim_names=("dp", "cp")), 1, {}),
        (good, 3, {}),
        (good, 0, {}),
        (good, 1, {"ranks_per_node": 0}),
        (good, 1, {"largest_pool": 4}),
        (good, 1 + rank, {}),
        (good, 1, {"largest_pool": 2 * rank}),
    ]
    messages = []
    for mesh, size, options in calls:
        with pytest.raises(ValueError, match="must") as raised:
            SequencePools(mesh, size, **options)
        messages.append(str(raised.value))
    os.environ["LOCAL_WORLD_SIZE"] = "0"
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE=0: must be"):
        SequencePools(good, 1)
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
            "largest_pool=4",
            f"sequences_per_pool={1 + rank}",
            f"largest_pool={2 * rank}",
        ]
        assert messages[3].endswith("at most dp=2")
        assert messages[-1].endswith("the same on all ranks of a mesh, not one of [0, 2]")


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
    nodes = [tuple(each.plane_nodes) for each in (pools, apart, inside)]
    return nodes, said, apart.store is given and pools.store is default_store()


@pytest.mark.dist
def test_nodes_and_store_are_the_launchers_unless_given() -> None:
    """All ranks are one node without ``LOCAL_WORLD_SIZE``; the store is the job's own."""
    expected = [(0, 0), (0, 1), (0, 0)]
    assert run_ranks(_nodes_and_store, 2) == [(expected, "by rank 0", True)] * 2
