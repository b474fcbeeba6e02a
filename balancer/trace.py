"""A recorded job: when each operation of each rank began, and how long it took.

Shapes: N operations, S steps, W recorded ranks, G model chunks of the whole model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How the job is divided; ``recorded_ranks`` of its ``world_size`` ranks are in the trace."""

    dp_size: int
    pp_size: int
    cp_size: int
    tp_size: int
    vpp_size: int
    world_size: int
    recorded_ranks: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Operations in order of step, rank and start.

    Attributes:
        steps: numbers of the steps [S], ascending.
        ranks: numbers of the recorded ranks [W], ascending.
        dp_ranks: data-parallel rank of each of them [W].
        stages: pipeline stage of each of them [W].
        lanes: which of the ranks with the same data-parallel rank and stage it is [W].
        optypes: names of the kinds of operations.
        step: index into ``steps`` [N].
        worker: index into ``ranks`` [N].
        optype: index into ``optypes`` [N].
        start_s: seconds, on a clock that a step's ranks share [N].
        duration_s: seconds, waiting included [N].
        chunk: model chunk within the stage, -1 where an operation has none [N].
        global_chunk: model chunk within the model, -1 where it has none [N].
        micro: micro-batch, -1 where it has none [N].
        mesh: how the job is divided.
    """

    steps: Int64
    ranks: Int64
    dp_ranks: Int64
    stages: Int64
    lanes: Int64
    optypes: tuple[str, ...]
    step: Int64
    worker: Int64
    optype: Int64
    start_s: Float64
    duration_s: Float64
    chunk: Int64
    global_chunk: Int64
    micro: Int64
    mesh: Mesh

    @property
    def end_s(self) -> Float64:
        """Seconds at which each operation ended [N]."""
        return self.start_s + self.duration_s

    def is_any(self, *names: str) -> Bool:
        """Tell which operations are of the kinds named [N]."""
        return np.array([name in names for name in self.optypes], dtype=bool)[self.optype]

    def only(self, keep: Bool) -> "Trace":
        """Return the trace with some of its steps [S]."""
        rows = keep[self.step]
        columns = ("worker", "optype", "start_s", "duration_s", "chunk", "global_chunk", "micro")
        return replace(
            self,
            steps=self.steps[keep],
            step=(np.cumsum(keep) - 1)[self.step[rows]],
            **{name: getattr(self, name)[rows] for name in columns},
        )

    def recorded_seconds(self) -> Float64:
        """Return how long each step took, first start to last end [S]."""
        bounds = np.searchsorted(self.step, np.arange(len(self.steps)))
        first = np.minimum.reduceat(self.start_s, bounds)
        return np.maximum.reduceat(self.end_s, bounds) - first


def make_trace(
    numbers: Mapping[str, Int64],
    seconds: Mapping[str, Float64],
    optypes: tuple[Int64, tuple[str, ...]],
    meta: Mapping[str, int],
    source: str,
) -> Trace:
    """Return the trace of columns as they were read, of one row at least.

    Args:
        numbers: columns dp_rank, stage, rank, step, mc, gmc and mb_id [N].
        seconds: columns start_ts and duration [N].
        optypes: the column optype as indices [N] into names.
        meta: sizes of the mesh that are known; the rows give the others.
        source: what to call the trace in complaints.

    Raises:
        ValueError: a value that cannot be, or a mesh that the rows contradict.
    """
    _check_values(numbers, seconds, optypes, source)
    ranks, worker = np.unique(numbers["rank"], return_inverse=True)
    steps, step = np.unique(numbers["step"], return_inverse=True)
    dp_ranks = _one_each(worker, numbers["dp_rank"], "dp_rank", ranks, source)
    stages = _one_each(worker, numbers["stage"], "stage", ranks, source)
    pp_size = int(stages.max()) + 1
    compute = np.isin(optypes[0], [i for i, name in enumerate(optypes[1]) if name in COMPUTE])
    chunk = np.where(compute, np.maximum(numbers["mc"], 0), numbers["mc"])
    derived = np.where(compute, chunk * pp_size + numbers["stage"], -1)
    global_chunk = np.where(numbers["gmc"] < 0, derived, numbers["gmc"])
    mesh = _mesh(ranks, dp_ranks, stages, int(chunk[compute].max()) + 1, meta, source)
    if global_chunk.max() >= mesh.pp_size * mesh.vpp_size:
        raise ValueError(
            f"{source}: gmc={global_chunk.max()} in a model of {mesh.pp_size} stages of "
            f"{mesh.vpp_size} chunks; number the chunks from 0, or leave gmc at -1"
        )
    start, duration = seconds["start_ts"], seconds["duration"]
    order = np.lexsort((start + duration, start, worker, step))
    return Trace(
        steps=steps,
        ranks=ranks,
        dp_ranks=dp_ranks,
        stages=stages,
        lanes=ordinals(dp_ranks * pp_size + stages),
        optypes=optypes[1],
        step=step[order],
        worker=worker[order],
        optype=optypes[0][order],
        start_s=start[order],
        duration_s=duration[order],
        chunk=chunk[order],
        global_chunk=global_chunk[order],
        micro=numbers["mb_id"][order],
        mesh=mesh,
    )


def _check_values(
    numbers: Mapping[str, Int64],
    seconds: Mapping[str, Float64],
    optypes: tuple[Int64, tuple[str, ...]],
    source: str,
) -> None:
    for name, values in seconds.items():
        bad = ~np.isfinite(values) | ((values < 0) if name == "duration" else False)
        if bad.any():
            row = int(np.argmax(bad))
            least = "finite and not negative" if name == "duration" else "finite"
            raise ValueError(f"{source}, row {row}: {name}={values[row]}: must be {least} seconds")
    for name in ("dp_rank", "stage", "rank", "step"):
        if (numbers[name] < 0).any():
            row = int(np.argmax(numbers[name] < 0))
            raise ValueError(
                f"{source}, row {row}: {name}={numbers[name][row]}: must not be negative"
            )
    if not set(optypes[1]) & set(COMPUTE):
        raise ValueError(
            f"{source}: has no operation of optype {FORWARD} or {BACKWARD} among "
            f"{', '.join(map(repr, optypes[1]))}; rename those that compute"
        )


def _one_each(worker: Int64, values: Int64, name: str, ranks: Int64, source: str) -> Int64:
    """Return each rank's single value of a column [W]."""
    own = np.zeros(len(ranks), np.int64)
    own[worker] = values
    if (own[worker] != values).any():
        rank = ranks[worker[np.argmax(own[worker] != values)]]
        raise ValueError(f"{source}: rank {rank} has more than one {name}; a rank keeps its own")
    return own


def _mesh(
    ranks: Int64, dp_ranks: Int64, stages: Int64, chunks: int, meta: Mapping[str, int], source: str
) -> Mesh:
    rows = {
        "dp_size": int(dp_ranks.max()) + 1,
        "pp_size": int(stages.max()) + 1,
        "vpp_size": chunks,
    }
    for name, size in rows.items():
        if meta.get(name, size) != size:
            raise ValueError(
                f"{source}: {name}={meta[name]} in the meta file, but the rows hold {size}; "
                f"give the meta file of this trace, or none"
            )
    sizes = {"cp_size": meta.get("cp_size", 1), "tp_size": meta.get("tp_size", 1), **rows}
    product = sizes["dp_size"] * sizes["pp_size"] * sizes["cp_size"] * sizes["tp_size"]
    world_size = meta.get("world_size", product)
    # Without a meta file the sizes that rows do not tell are 1, and ranks may exceed the product.
    if meta and (world_size != product or ranks.max() >= world_size):
        raise ValueError(
            f"{source}: world_size={world_size} in the meta file, but its sizes multiply to "
            f"{product} and the rows hold rank {ranks.max()}; give the meta file of this trace"
        )
    return Mesh(**sizes, world_size=world_size, recorded_ranks=len(ranks))


def ordinals(keys: Int64) -> Int64:
    """Return how many equal keys stand before each one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.arange(len(keys)) - np.searchsorted(ordered, ordered)
    result = np.empty(len(keys), np.int64)
    result[order] = place
    return result
