"""The limits of the origin in a cluster: a proxy's part of the limits is as large as its part of
the objects.
"""

import pytest
from structlog.testing import capture_logs

from shadeproxy.app.origin_share import OriginShare
from shadeproxy.app.origins import build_origin
from shadeproxy.config import Settings


def built(*settings):
    told = Settings.load(None, ["origin.kind=file", "origin.path=/", *settings])
    made = build_origin(told)
    return made, OriginShare(told.origin, made.limited, made.throttled)


def test_alone_it_has_all():
    made, share = built("origin.max_connections=40", "origin.bandwidth=100 MB")
    assert (share.connections, share.bytes_per_s) == (40, 100e6)
    assert made.limited.prefetched == 35
    assert built()[1].bytes_per_s == 0.0


@pytest.mark.parametrize(
    ("part", "connections", "bytes_per_s"),
    [(0.25, 10, 25e6), (0.33, 13, 33e6), (0.01, 1, 1e6), (0.0, 1, 1e6), (1.0, 40, 100e6)],
)
def test_a_part_is_taken_and_said(part, connections, bytes_per_s):
    made, share = built("origin.max_connections=40", "origin.bandwidth=100 MB")
    share.take_part(0.5)
    with capture_logs() as lines:
        share.take_part(part)
        share.take_part(part)
    assert made.limited.forwards.count == share.connections == connections
    assert made.throttled.bytes_per_s == share.bytes_per_s == pytest.approx(bytes_per_s)
    assert lines == [
        {
            "event": "this proxy's share of the limits of the origin", "log_level": "info",
            "share": f"{part:.1%}", "connections": connections, "bytes_per_s": round(bytes_per_s),
        }
    ]  # fmt: skip
