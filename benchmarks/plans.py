"""How even plans are, how many bytes they move, and how long they take: no torch, no ranks.

Shapes: P sequences; B bins of a pool; H, G heads of the model; C ranks of a CP group.
"""

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks.lengths import family, packed_cell
from libra.attention.cost import FLOPS_COST
from libra.attention.heads import HeadSplit
from libra.attention.layout import make_layout
from libra.attention.plan import Plan, PlanSettings, plan_cell


@dataclass(frozen=True, kw_only=True)
class PlanCase:
    """One row of the benchmark."""

    lengths: str
    tokens: int
    pool: int
    heads: HeadSplit
    packs: int
    settings: PlanSettings
    seed: int = 0


def measure_plans(case: PlanCase) -> dict[str, object]:
    """Plan ``packs`` cells and return figures of evenness, bytes and seconds."""
    draw, rng = family(case.lengths), np.random.default_rng(case.seed)
    skews, means, busiest, seconds, moves = [], [], [], [], []
    home_skews, limits, over_bound = [], Counter[str](), []
    for index in range(case.packs + 1):
        cell = packed_cell(draw, rng, case.tokens, case.pool)
        start = time.perf_counter()
        make_layout(
            cell, 0, tokens=case.tokens, heads=case.heads, settings=case.settings, step=index
        )
        spent = time.perf_counter() - start
        if not index:
            continue  # the first call imports and warms up
        plan = plan_cell(cell, case.heads, FLOPS_COST, case.settings)
        skews.append(_skew(plan.load_ticks))
        home_skews.append(_skew(plan.home_ticks))
        over_bound.append(skews[-1] / block_bound(plan, case.settings.block_rows))
        sent = sent_vectors(plan) / ulysses_vectors(case.heads, case.tokens)
        means.append(float(sent.mean()))
        busiest.append(float(sent.max()))
        seconds.append(spent)
        moves.append(len(plan.moves))
        limits[plan.limit] += 1
    return {
        "max_over_mean": _summary(skews),
        "bytes_ratio": {"mean": float(np.median(means)), "busiest": float(np.median(busiest))},
        "seconds": {"median": float(np.median(seconds))},
        "packs": case.packs,
        "share_within_1.02": float(np.mean(np.array(skews) <= 1.02)),
        "over_block_bound": _summary(over_bound),
        "home_max_over_mean": _summary(home_skews),
        "moves": float(np.mean(moves)),
        "limits": dict(limits),
    }


def sent_vectors(plan: Plan) -> np.ndarray:
    """Return [B] head-sized vectors that each rank sends to others, forward and backward.

    The home of a tile sends q, k, v and the output's gradient; who computes it sends the output,
    dq, dk and dv.
    """
    tiles, sent = plan.moves.tiles, np.zeros(plan.bins)
    moved = 2.0 * (tiles.query_vectors + tiles.key_vectors)
    np.add.at(sent, plan.moves.source, moved)
    np.add.at(sent, plan.moves.target, moved)
    return sent


def ulysses_vectors(heads: HeadSplit, tokens: int) -> float:
    """Return the vectors that Ulysses itself sends a rank, forward and backward, mean over ranks.

    Where C is 1 it sends nothing: then those of q, k, v, the output and their gradients.
    """
    ranks = range(heads.cp)
    held = sum(np.diff(heads.query_range(own))[0] for own in ranks) + sum(
        np.diff(heads.kv_range(own))[0] for own in ranks
    )
    # Out of a token's vectors, all but the share of its own rank travel; q, k, v and out, twice.
    everything = 4.0 * float(held) * tokens / heads.cp
    return everything * (heads.cp - 1) / heads.cp if heads.cp > 1 else everything


def block_bound(plan: Plan, block_rows: int) -> float:
    """Return max / mean that blocks alone may cost: the mean and the dearest block of all."""
    longest = max(int(part.max(initial=0)) for part in plan.lengths)
    heads = min(run.group for runs in plan.runs for run in runs)
    block = int(FLOPS_COST.price(max(longest - block_rows, 0), longest)) * heads
    mean = float(plan.load_ticks.mean())
    return 1.0 + block / mean if mean else 1.0


def held_share(plan: Plan) -> float:
    """Return the most query and key vectors that a bin holds, over the most held at home."""
    homes = [plan.home(own) for own in range(plan.bins)]
    home = np.array([int((own.query_vectors + own.key_vectors).sum()) for own in homes])
    held, tiles = home.copy(), plan.moves.tiles
    np.add.at(held, plan.moves.target, tiles.query_vectors + tiles.key_vectors)
    return float(held.max() / home.max()) if home.any() else 1.0


def _skew(loads: np.ndarray) -> float:
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "p99": float(np.quantile(values, 0.99)),
        "max": float(np.max(values)),
    }
