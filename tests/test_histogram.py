"""Histograms count each value once, in the bucket that Prometheus would expect it in."""

import pytest

from libra.balancer.histogram import Exemplar, Histogram


def test_a_value_belongs_below_or_at_its_bound() -> None:
    """A bound is part of its bucket, and what exceeds all bounds has one of its own."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)

    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


def test_the_newest_example_is_kept() -> None:
    """A bucket shows the last value that came with its origin."""
    histogram = Histogram((1.0,))
    for step in range(3):
        histogram.observe(0.5, Exemplar(labels={"step": str(step)}, value=0.5, at_s=0.0))
    histogram.observe(0.7)

    kept = histogram.exemplars[0]
    assert kept is not None
    assert kept.labels == {"step": "2"}


def test_time_is_counted_even_when_the_block_fails() -> None:
    """A request that is refused took its time as well."""
    histogram = Histogram()
    with pytest.raises(KeyError), histogram.time():
        raise KeyError

    assert sum(histogram.counts) == 1


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0)])
def test_bounds_must_ascend(bounds: tuple[float, ...]) -> None:
    """Bounds that cannot be buckets are refused by name."""
    with pytest.raises(ValueError, match="bounds="):
        Histogram(bounds)
