"""What interleaved runs amount to: sums, skews, noise, and which packs may be believed. Pure.

Shapes: R ranks; N packs; V variants; F figures of a run.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.layer import FIGURES, Float64
from benchmarks.tables import Value

# As the demo judges its pairs: kernels that took this much more wall than CPU time were kept
# waiting for a core, and where the variants' kernel totals lie further apart than this, the
# machine changed its speed between them.
_MOST_WAITED = 1.05
_MOST_DRIFT = 1.1


@dataclass(frozen=True, slots=True)
class Runs:
    """[R, N, V, F] figures of all ranks."""

    figures: Float64

    def of(self, figure: str, variant: int) -> Float64:
        """Return [R, N] of one figure under one variant."""
        return np.asarray(self.figures[:, :, variant, FIGURES.index(figure)])

    def slowest(self, variant: int) -> Float64:
        """Return [N] seconds of each step: its slowest rank's."""
        return np.asarray(self.of("seconds", variant).max(axis=0))

    def skew(self, variant: int) -> Float64:
        """Return [N] kernel seconds of the slowest rank over the mean; 1 is perfect."""
        kernels = self.of("kernel_wall_s", variant)
        return np.asarray(kernels.max(axis=0) / kernels.mean(axis=0))

    def steady(self) -> NDArray[np.bool_]:
        """Return [N] whether the machine treated a pack's runs alike.

        Judged by total work and not by how it is spread.
        """
        wall, cpu = (
            self.figures[..., FIGURES.index(name)] for name in ("kernel_wall_s", "kernel_cpu_s")
        )
        waited = (wall / np.maximum(cpu, 1e-9)).max(axis=(0, 2))
        totals = wall.sum(axis=0)
        drift = totals.max(axis=1) / totals.min(axis=1)
        return np.asarray((waited <= _MOST_WAITED) & (drift <= _MOST_DRIFT))

    def only(self, packs: NDArray[np.bool_]) -> "Runs":
        return replace(self, figures=self.figures[:, packs])

    def __len__(self) -> int:
        return int(self.figures.shape[1])


def gains(runs: Runs, libra: int, homes: tuple[int, int]) -> dict[str, Value]:
    """Return what a variant gains over plain Ulysses, which ran twice: once to tell the noise.

    Sums over packs: a mean of ratios would favour short steps. "perfect" is plain Ulysses'
    slowest rank over its mean rank, what perfect balance at no cost would give.
    """
    if not len(runs):
        return {}
    home = (runs.of("seconds", homes[0]) + runs.of("seconds", homes[1])) / 2
    before, after = home.max(axis=0), runs.slowest(libra)
    speedup = before.sum() / after.sum()
    perfect = before.sum() / home.mean(axis=0).sum()
    pair_noise = noise(runs, homes)
    return {
        "speed-up": float(speedup),
        "perfect": float(perfect),
        "share": float(speedup / perfect),
        "exposed exchange": float(runs.of("wait_s", libra).max(axis=0).sum() / after.sum()),
        "slower": int((after > before * (1 + pair_noise)).sum()),
        "noise": pair_noise,
        "skew before": float(runs.skew(homes[0]).mean()),
        "skew after": float(runs.skew(libra).mean()),
        "kernels": _total(runs, libra) / _total(runs, homes[0]),
    }


def noise(runs: Runs, homes: tuple[int, int]) -> float:
    """Return by how much two runs of plain Ulysses differ on all but one pack in twenty."""
    first, again = (runs.slowest(own) for own in homes)
    return float(np.quantile(np.abs(again / first - 1), 0.95))


def ratio(over: Float64, under: Float64) -> tuple[float, float | None]:
    """Return the ratio of two variants' sums over packs, [N] each, and its standard error.

    One pack has none.
    """
    total = over.sum() / under.sum()
    # The spread of what each pack adds to the ratio of sums.
    parts = (over - total * under) / under.mean()
    error = float(parts.std(ddof=1) / np.sqrt(len(parts))) if len(parts) > 1 else None
    return float(total), error


def _total(runs: Runs, variant: int) -> float:
    return float(runs.of("kernel_wall_s", variant).sum())
