import pytest

from shadeproxy.telemetry.histogram import interpolated_quantile, shown_quantiles

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, 0.0),  # nothing was measured
        ([10, 0, 0, 0], 0.5, 0.5),
        ([10, 0, 10, 0], 0.5, 1.0),
        ([10, 0, 10, 0], 0.75, 3.0),
        ([0, 0, 0, 10], 0.5, 4.0),  # The value is above all bounds.
        ([1, 1, 1, 1], 1.0, 4.0),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(buckets, share, expected):
    assert interpolated_quantile(BOUNDS, buckets, share) == expected


def test_the_shown_quantiles_are_named_by_their_percentage():
    assert shown_quantiles(lambda share: share) == {"p50": 0.5, "p90": 0.9, "p99": 0.99}
