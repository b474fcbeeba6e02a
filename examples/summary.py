"""What a demo's pairs amount to: figures, their noise, and whether they may be believed. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from libra.examples.pairs import Clock, Pair, Run, percentile

# The two runs add the same float32 numbers in another order; 2**-24 a rounding, over some
# hundred additions that matter, stays below this.
TOLERANCE = 2e-5
# Kernels that take this much more wall than CPU time were kept waiting for a core.
DISTURBED = 1.05
_MAX_DISTURBED_SHARE = 0.25


def summarise(
    pairs: Sequence[Pair], *, clock: Clock, wanted: int, policies: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return the JSON object of ``libra demo --json``.

    Figures of time are over the pairs that count, None when there are none; differences are
    over all pairs, warm-up included.

    Args:
        pairs: all of the job's.
        clock: that the job was judged by.
        wanted: pairs that were asked for.
        policies: the balancer's view of them, empty when it did not answer.
    """
    counted = [pair for pair in pairs if not pair.warmup]
    return {
        "baseline": _side(counted, lambda pair: pair.baseline),
        "libra": _side(counted, lambda pair: pair.libra),
        **_gains(counted),
        "exchange_share": _exchange_share(counted) if clock == "wall" else None,
        "max_loss_difference": max((pair.loss_difference for pair in pairs), default=None),
        "max_gradient_difference": max((pair.gradient_difference for pair in pairs), default=None),
        "policies": _policies(counted, policies),
        "pairs": len(counted),
        "warmup_pairs": len(pairs) - len(counted),
        "clock": clock,
        "ranks": len(pairs[0].libra.kernel_seconds) if pairs else 0,
        "noise": _noise(pairs, counted, clock),
        "verdict": _verdict(counted, clock, wanted),
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


def _policies(counted: Sequence[Pair], published: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    first_steps: dict[int, int] = {}
    for pair in counted:
        first_steps.setdefault(pair.policy_version, pair.step)
    reasons = {policy["version"]: policy["reason"] for policy in published}
    return [
        {"version": version, "first_step": step, "reason": reasons.get(version)}
        for version, step in first_steps.items()
    ]


def _noise(pairs: Sequence[Pair], counted: Sequence[Pair], clock: Clock) -> dict[str, Any]:
    """How steady the machine was; warm-up pairs ran the same plan twice and should be equal."""
    warmup = [pair for pair in pairs if pair.warmup]
    return {
        "disturbed_pairs": _num_disturbed(counted) if clock == "wall" else None,
        "disturbed_above": DISTURBED,
        "worst_wall_over_cpu": max((_disturbance(pair) for pair in counted), default=None),
        "warmup_speedup": _gains(warmup)["speedup"],
    }


def _verdict(counted: Sequence[Pair], clock: Clock, wanted: int) -> str:
    if not counted:
        return "inconclusive: no policy took effect in time"
    disturbed = _num_disturbed(counted)
    if clock == "wall" and disturbed > _MAX_DISTURBED_SHARE * len(counted):
        return (
            f"inconclusive: in {disturbed} of {len(counted)} pairs the kernels waited for a "
            "core, so other programs were measured too"
        )
    if len(counted) < wanted:
        return f"inconclusive: only {len(counted)} of {wanted} pairs were measured in time"
    return "ok"


def _num_disturbed(counted: Sequence[Pair]) -> int:
    return sum(_disturbance(pair) > DISTURBED for pair in counted)


def _disturbance(pair: Pair) -> float:
    return max(pair.baseline.disturbance, pair.libra.disturbance)
