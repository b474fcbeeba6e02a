"""What a demo's pairs amount to: figures, their noise, and whether they may be believed. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from libra.examples.pairs import Clock, Pair, Run, percentile

# The two runs add the same float32 numbers in another order; 2**-24 a rounding, over some
# hundred additions that matter, stays below this.
TOLERANCE = 2e-5
_MAX_UNSTEADY_SHARE = 1 / 3


def summarise(
    pairs: Sequence[Pair], *, clock: Clock, wanted: int, policies: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return the JSON object of ``libra demo --json``.

    Figures of time are over the pairs that count, None when there are none: those under a
    published policy in which the machine was steady. ``noise`` has the speed-up over the unsteady
    ones as well. Differences are over all pairs, warm-up included.

    Args:
        pairs: all of the job's.
        clock: that the job was judged by.
        wanted: pairs that were asked for.
        policies: the balancer's view of them, empty when it did not answer.
    """
    pooled = [pair for pair in pairs if not pair.warmup]
    counted = [pair for pair in pooled if pair.steady(clock)]
    return {
        "baseline": _side(counted, lambda pair: pair.baseline),
        "libra": _side(counted, lambda pair: pair.libra),
        **_gains(counted),
        "exchange_share": _exchange_share(counted) if clock == "wall" else None,
        "max_loss_difference": max((pair.loss_difference for pair in pairs), default=None),
        "max_gradient_difference": max((pair.gradient_difference for pair in pairs), default=None),
        "policies": _policies(pooled, policies),
        "pairs": len(counted),
        "warmup_pairs": len(pairs) - len(pooled),
        "clock": clock,
        "ranks": len(pairs[0].libra.kernel_seconds) if pairs else 0,
        "noise": _noise(pairs, pooled, counted),
        "verdict": _verdict(pooled, counted, wanted),
    }


def disagreement(summary: dict[str, Any]) -> str | None:
    """Return what is wrong with the numerics, None if Libra computed what the baseline did."""
    for name in ("loss", "gradient"):
        value = summary[f"max_{name}_difference"]
        if value is not None and value > TOLERANCE:
            return (
                f"the largest {name} difference between the two runs is {value:.1e}, above "
                f"float32's tolerance of {TOLERANCE:.0e}"
            )
    return None


def _side(counted: Sequence[Pair], run: Callable[[Pair], Run]) -> dict[str, Any]:
    if not counted:
        nothing = dict.fromkeys(("mean", "p95", "worst"))
        return {"skew": nothing, "step_seconds": {"median": None}}
    skews = [run(pair).skew for pair in counted]
    return {
        "skew": {
            "mean": sum(skews) / len(skews),
            "p95": percentile(skews, 95),
            "worst": max(skews),
        },
        "step_seconds": {"median": percentile([run(pair).step_seconds for pair in counted], 50)},
    }


def _gains(counted: Sequence[Pair]) -> dict[str, float | None]:
    """Ratios of sums: a mean of ratios would favour short steps."""
    if not counted:
        return dict.fromkeys(("speedup", "perfect_speedup", "gain_share"))
    before = sum(pair.baseline.step_seconds for pair in counted)
    after = sum(pair.libra.step_seconds for pair in counted)
    surplus = sum(pair.baseline.surplus_seconds for pair in counted)
    return {
        "speedup": before / after,
        "perfect_speedup": before / (before - surplus),
        "gain_share": (before - after) / surplus if surplus else None,
    }


def _exchange_share(counted: Sequence[Pair]) -> float | None:
    if not counted:
        return None
    waits = sum(max(pair.libra.wait_seconds) for pair in counted)
    return waits / sum(pair.libra.step_seconds for pair in counted)


def _policies(pooled: Sequence[Pair], published: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    first_steps: dict[int, int] = {}
    for pair in pooled:
        first_steps.setdefault(pair.policy_version, pair.step)
    reasons = {policy["version"]: policy["reason"] for policy in published}
    return [
        {"version": version, "first_step": step, "reason": reasons.get(version)}
        for version, step in first_steps.items()
    ]


def _noise(
    pairs: Sequence[Pair], pooled: Sequence[Pair], counted: Sequence[Pair]
) -> dict[str, Any]:
    """How steady the machine was; warm-up pairs ran the same plan twice and should be equal."""
    runs = [run for pair in pooled for run in (pair.baseline, pair.libra)]
    return {
        "unsteady_pairs": len(pooled) - len(counted),
        "speedup_of_all_pairs": _gains(pooled)["speedup"],
        "worst_wall_over_cpu": max((run.disturbance for run in runs), default=None),
        "worst_drift": max((pair.drift for pair in pooled), default=None),
        "warmup_speedup": _gains([pair for pair in pairs if pair.warmup])["speedup"],
    }


def _verdict(pooled: Sequence[Pair], counted: Sequence[Pair], wanted: int) -> str:
    if not pooled:
        return "inconclusive: no policy took effect in time"
    unsteady = len(pooled) - len(counted)
    if unsteady > _MAX_UNSTEADY_SHARE * len(pooled):
        return (
            f"inconclusive: in {unsteady} of {len(pooled)} pairs the machine treated the two runs "
            "unequally, so other programs were measured too"
        )
    if len(counted) < wanted:
        return f"inconclusive: only {len(counted)} of {wanted} pairs were measured in time"
    return "ok"
