"""How even placements are, what bounds them, how long one takes, and what ranks then send.

Shapes: N packed sequences of a step; M cells.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.lengths import Int64
from benchmarks.placement_case import DrawnStep, PlacementCase, drawn_steps
from benchmarks.pool_exchange import Exchange, measure_exchange
from libra.balancer.bound import lower_bound
from libra.balancer.placement import Placement, place
from libra.balancer.step_placement import StepPlacement, place_step

Placer = Callable[[Int64], Placement | StepPlacement]

# A thousandth above the bound is as even as costs are true.
_AT_BOUND = 1.001


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """One step placed.

    Attributes:
        costs: [N] of its sequences.
        placed: by the pools that the case asks for.
        sizes: of its cells.
        seconds: that it took.
        fixed: the same by pools of P, where the case asks for elastic ones.
        sent, sent_fixed: what ranks send, where the case asks for it.
        in_order: imbalance of pools of P that take sequences as they are drawn.
        largest: costliest sequence over the mean.
    """

    costs: Int64
    placed: Placement
    sizes: tuple[int, ...]
    seconds: float
    fixed: Placement | None
    sent: Exchange | None
    sent_fixed: Exchange | None
    in_order: float
    largest: float


def measure_placement(case: PlacementCase) -> dict[str, object]:
    """Place every step of a case and return figures of evenness, seconds and bytes.

    Raises:
        ValueError: a setting is not what it must be; the message names it.
    """
    steps: list[StepFigures] = []
    place_one = _placer(case)
    for step in drawn_steps(case):
        if not steps:
            place_one(step.costs)  # the first call warms up
        steps.append(_measure(step, case, place_one))
    seconds = [own.seconds for own in steps]
    used = Counter(size for own in steps for size in own.sizes)
    fixed = [(own.costs, own.fixed) for own in steps if own.fixed]
    return {
        **_evenness([(own.costs, own.placed) for own in steps]),
        "seconds": {"median": float(np.median(seconds)), "max": float(np.max(seconds))},
        "in_order": spread([own.in_order for own in steps]),
        "sequences_max_over_mean": spread([own.largest for own in steps]),
        "pool_sizes": {str(size): used[size] for size in sorted(used)},
        **({"fixed": _evenness(fixed)} if fixed else {}),
        **_bytes(
            [own.sent for own in steps if own.sent],
            [own.sent_fixed for own in steps if own.sent_fixed],
        ),
        "steps": case.steps,
    }


def in_order(costs: Int64, sizes: Sequence[int]) -> float:
    """Return the imbalance of cells that take sequences as they are drawn."""
    loads = np.add.reduceat(costs, np.concatenate(([0], np.cumsum(sizes)[:-1])))
    return float((loads / np.array(sizes)).max() / costs.mean()) - 1.0


def bound_of(costs: Int64, placed: Placement) -> float:
    """Return the largest of two bounds on the imbalance of any placement in these cells.

    The mean, and the largest sequence with the smallest others. Several large sequences together
    often forbid more: ``Placement.bound_imbalance`` counts them.
    """
    sizes = (placed.cells >= 0).sum(axis=1)
    least = lower_bound(costs, sizes, placed.weights, largest=1)
    return replace(placed, bound=least).bound_imbalance


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, median, p95 and largest of figures of steps."""
    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p95": float(np.quantile(values, 0.95)),
        "max": float(np.max(values)),
    }


def at_bound(imbalance: Sequence[float], bound: Sequence[float]) -> float:
    """Return the share of steps whose heaviest cell is within 0.1 % of the bound."""
    even = (1 + np.array(imbalance)) <= (1 + np.array(bound)) * _AT_BOUND
    return float(even.mean())


def _measure(step: DrawnStep, case: PlacementCase, place_one: Placer) -> StepFigures:
    sizes = case.shape.cell_sizes(case.batch)
    start = time.perf_counter()
    answer = place_one(step.costs)
    seconds = time.perf_counter() - start
    placed, cells = _cells(answer)
    fixed = place(step.costs, sizes) if case.elastic else None
    sent = sent_fixed = None
    if case.exchange:
        pooling = isinstance(answer, Placement) or answer.pooling
        sent = measure_exchange(map(step.cell, cells), case.tokens, pooling=pooling)
    if case.exchange and fixed:
        sent_fixed = measure_exchange(map(step.cell, _cells(fixed)[1]), case.tokens)
    return StepFigures(
        costs=step.costs,
        placed=placed,
        sizes=tuple(map(len, cells)),
        seconds=seconds,
        fixed=fixed,
        sent=sent,
        sent_fixed=sent_fixed,
        in_order=in_order(step.costs, sizes),
        largest=float(step.costs.max() / step.costs.mean()),
    )


def _placer(case: PlacementCase) -> Placer:
    """Return what places a step's costs; a call of it is what is timed."""
    shape, sizes = case.shape, case.shape.cell_sizes(case.batch)
    if case.elastic:
        return lambda costs: place_step(costs, shape)
    return lambda costs: place(costs, sizes)


def _cells(answer: Placement | StepPlacement) -> tuple[Placement, list[Int64]]:
    """Return the placement, and the sequences of each of its cells."""
    if isinstance(answer, Placement):
        return answer, [row[row >= 0] for row in answer.cells]
    assert answer.placement is not None  # only steps in order of drawing have none
    return answer.placement, [
        part
        for row, sizes in zip(answer.slots, answer.sizes, strict=True)
        for part in np.split(row, np.cumsum(sizes)[:-1])
    ]


def _evenness(steps: Sequence[tuple[Int64, Placement]]) -> dict[str, object]:
    imbalance = [own.imbalance for _, own in steps]
    bound = [bound_of(costs, own) for costs, own in steps]
    tight = [own.bound_imbalance for _, own in steps]
    return {
        "imbalance": spread(imbalance),
        "bound": spread(bound),
        "above_bound": spread([own - least for own, least in zip(imbalance, bound, strict=True)]),
        "within_0.1_percent": at_bound(imbalance, bound),
        "tight_bound": spread(tight),
        "above_tight_bound": spread(
            [own - least for own, least in zip(imbalance, tight, strict=True)]
        ),
        "within_0.1_percent_of_tight_bound": at_bound(imbalance, tight),
    }


def _bytes(sent: Sequence[Exchange], fixed: Sequence[Exchange]) -> dict[str, object]:
    """Return what ranks send over what Ulysses sends, means over steps."""
    if not sent:
        return {}
    figures: dict[str, object] = {"bytes": _mean(sent)}
    if fixed:
        own, other = _mean(sent), _mean(fixed)
        figures["fixed_bytes"] = other
        figures["bytes_ratio"] = {
            name: own[name] / other[name] if other[name] else None for name in ("mean", "busiest")
        }
    return figures


def _mean(sent: Sequence[Exchange]) -> dict[str, float]:
    names = ("mean", "busiest", "rank_imbalance")
    return {name: float(np.mean([getattr(own, name) for own in sent])) for name in names}
