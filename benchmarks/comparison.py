"""Compare Libra's placement with others' on the same steps.

Not every way can do every case. The row of one that cannot says why, and the others stand.

Shapes: N packed sequences of a step; M cells; W micro-batches.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks import comparators
from benchmarks.dynamic_cp import group_rounds, rank_loads
from benchmarks.lengths import Int64
from benchmarks.placement_case import DrawnStep, PlacementCase, drawn_steps
from benchmarks.placement_figures import at_bound
from benchmarks.pool_exchange import measure_exchange
from benchmarks.tables import Row, Value
from benchmarks.wlb_packing import Document, WlbPacking, WlbSettings
from libra.attention.cost import FLOPS_COST
from libra.balancer.bound import lower_bound
from libra.balancer.placement import EVEN_ENOUGH, place
from libra.balancer.refine import MAX_ROUNDS, Cells

# Of the plain pair swaps after Karmarkar-Karp: more than Libra makes rounds.
SWAPS = 256
# Where WLB-LLM's micro-batch may exceed the window, and where its outlier queues begin; ours.
_WLB_MEMORY = 1.25
_WLB_OUTLIERS = (0.25, 0.5)
# C, and over how many ranks at least Megatron spreads a document of a whole window.
_CP = 8
_SHARES = (_CP, 8 * _CP)

Way = Callable[[Int64], Int64]


_FIGURES = ("mean", "median", "p95", "max", "above bound", "within 0.1 %", "ms")
_DOCUMENT_FIGURES = (
    *("slowest rank, mean", "p95", "delayed documents", "most tokens / window", "rounds"),
)


def whole_sequence_ways(cells: int, tokens: int, seed: int) -> dict[str, Way]:
    """Return by name what gives [M, P] cells from [N] costs."""
    rng = np.random.default_rng(seed)

    def swapped(costs: Int64) -> Int64:
        start = comparators.karmarkar_karp(costs, cells)
        return comparators.swapped(start, costs, SWAPS)

    def exchanged(costs: Int64) -> Int64:
        ones = np.ones(cells, dtype=np.int64)
        own = Cells(comparators.karmarkar_karp(costs, cells), costs, ones)
        least = lower_bound(costs, np.full(cells, len(costs) // cells), ones)
        own.refine(least + least // EVEN_ENOUGH, MAX_ROUNDS)
        return own.members

    return {
        "Libra": lambda costs: place(costs, cells).cells,
        "random": lambda costs: comparators.random_cells(costs, cells, rng),
        "token-balanced": lambda costs: comparators.token_balanced(
            np.full(len(costs), tokens, dtype=np.int64), cells
        ),
        "longest first (Libra's paper)": lambda costs: comparators.longest_first(costs, cells),
        "Karmarkar-Karp, equal counts": lambda costs: comparators.karmarkar_karp(costs, cells),
        f"Karmarkar-Karp + {SWAPS} swaps of pairs": swapped,
        "Karmarkar-Karp + Libra's exchanges": exchanged,
    }


def compare_sequences(case: PlacementCase) -> list[Row]:
    """Return a row for each way to place whole sequences into cells of P."""
    sizes = np.array(case.shape.cell_sizes(case.batch))
    steps = [step.costs for step in drawn_steps(case)]
    bound = [_bound_imbalance(costs, sizes) for costs in steps]
    ways = whole_sequence_ways(len(sizes), case.tokens, case.seed)
    if case.batch % case.pool:
        ways = {name: lambda costs: _refused(case) for name in ways}
        ways["Libra"] = lambda costs: place(costs, sizes.tolist()).cells
    return [_sequences_row(name, way, steps, bound) for name, way in ways.items()]


def _refused(case: PlacementCase) -> Int64:
    raise ValueError(
        f"batch={case.batch}: must be a multiple of pool={case.pool}; it knows equal cells only"
    )


def _sequences_row(name: str, way: Way, steps: list[Int64], bound: list[float]) -> Row:
    imbalance, seconds = [], []
    try:
        way(steps[0])  # the first call warms up
        for costs in steps:
            start = time.perf_counter()
            own = way(costs)
            seconds.append(time.perf_counter() - start)
            loads = np.append(costs, 0)[own].sum(axis=1) / (own >= 0).sum(axis=1)
            imbalance.append(float(loads.max() / costs.mean()) - 1.0)
    except ValueError as error:
        return {"whole sequences": name, **dict.fromkeys(_FIGURES), "why not": str(error)}
    figures = (
        float(np.mean(imbalance)),
        float(np.median(imbalance)),
        float(np.quantile(imbalance, 0.95)),
        float(np.max(imbalance)),
        float(np.mean(imbalance) - np.mean(bound)),
        at_bound(imbalance, bound),
        1e3 * float(np.median(seconds)),
    )
    return {"whole sequences": name, **dict(zip(_FIGURES, figures, strict=True))}


def _bound_imbalance(costs: Int64, sizes: Int64) -> float:
    """Return the least imbalance that cells of these sizes allow."""
    weights = np.lcm.reduce(sizes) // sizes
    bound = lower_bound(costs, sizes, weights)
    return float(bound / weights[0] / sizes[0] / costs.mean()) - 1.0


def compare_documents(case: PlacementCase, *, steps: int) -> list[Row]:
    """Return a row for each way that moves documents or changes CP sizes.

    Work is attention's alone, per rank; ranks inside a CP group are taken as even. A row's
    imbalance is what the slowest rank waits for in one step, and the others say at what price.
    """
    drawn = [step for step, _ in zip(drawn_steps(case), range(steps), strict=False)]
    outliers = tuple(int(share * case.tokens) for share in _WLB_OUTLIERS)
    shares = dict.fromkeys(max(1, case.tokens // share) for share in _SHARES)
    return [
        _tried(f"Libra, pools of {case.pool}", lambda name: _libra(name, case, drawn)),
        _tried("WLB-LLM, no queue", lambda name: _wlb(name, case, drawn, ())),
        _tried("WLB-LLM, outlier queue", lambda name: _wlb(name, case, drawn, outliers)),
        *(
            _tried(
                f"Megatron, dynamic CP, {most} tokens a rank",
                partial(_dynamic, case=case, drawn=drawn, most=most),
            )
            for most in shares
        ),
    ]


def _tried(name: str, measure: Callable[[str], Row]) -> Row:
    try:
        return measure(name)
    except ValueError as error:
        return {"documents": name, **dict.fromkeys(_DOCUMENT_FIGURES), "why not": str(error)}


def _libra(name: str, case: PlacementCase, drawn: list[DrawnStep]) -> Row:
    """Return the row of pools of P, after tiles have moved inside them."""
    found = []
    for step in drawn:
        placed = place(step.costs, case.shape.cell_sizes(case.batch))
        cells = (step.cell(row[row >= 0]) for row in placed.cells)
        found.append(measure_exchange(cells, case.tokens).rank_imbalance)
    return _row(name, found, changes="nothing")


def _wlb(
    name: str, case: PlacementCase, drawn: list[DrawnStep], thresholds: tuple[int, ...]
) -> Row:
    settings = WlbSettings(
        micro_batches=case.batch,
        max_tokens=int(_WLB_MEMORY * case.tokens),
        thresholds=thresholds,
    )
    packing = WlbPacking(settings, lambda lengths: FLOPS_COST.price(0, lengths))
    found, tokens, late, every = [], [], 0, 0
    for number, step in enumerate(drawn):
        batches = packing.pack(
            Document(length, number, index) for index, length in enumerate(step.lengths.tolist())
        )
        held = [np.array([own.length for own in batch], dtype=np.int64) for batch in batches]
        work = np.array([FLOPS_COST.price(0, own).sum() for own in held], dtype=np.float64)
        found.append(float(work.max() / work.mean()) - 1.0 if work.any() else 0.0)
        tokens.append(max(int(own.sum()) for own in held) / case.tokens)
        late += sum(own.step < number for batch in batches for own in batch)
        every += len(step.lengths)
    late += len(packing.waiting)
    return _row(
        name,
        found,
        changes="documents of a step, tokens of a micro-batch",
        late=late / every,
        tokens=float(np.max(tokens)),
    )


def _dynamic(name: str, case: PlacementCase, drawn: list[DrawnStep], most: int) -> Row:
    """Return the row of R = N C ranks; fewer tokens a rank are more ranks a document."""
    ranks = case.batch * _CP
    found, rounds = [], []
    for step in drawn:
        work = FLOPS_COST.price(0, step.lengths).tolist()
        own = group_rounds(step.lengths.tolist(), work, ranks, most)
        loads = rank_loads(own, ranks)
        # Ranks meet after every round, so a step takes the sum of each round's slowest.
        found.append(float(loads.max(axis=1).sum() * ranks / loads.sum()) - 1.0)
        rounds.append(len(own))
    return _row(
        name,
        found,
        changes="CP size of every document",
        rounds=float(np.mean(rounds)),
    )


def _row(
    name: str,
    found: list[float],
    *,
    changes: str,
    late: float = 0.0,
    tokens: float = 1.0,
    rounds: float = 1.0,
) -> dict[str, Value]:
    figures = (float(np.mean(found)), float(np.quantile(found, 0.95)), late, tokens, rounds)
    return {
        "documents": name,
        **dict(zip(_DOCUMENT_FIGURES, figures, strict=True)),
        "changes": changes,
    }
