"""The frame budget: the number of Python calls that each kind of request costs, and of the files they are
in.

Time varies from run to run; this number does not. tests/support/frame_counts.py says what is counted. A
number that rises needs an ADR in docs/adr that says what the calls buy. A number that falls is written down
here, so that it does not rise again.
"""

import platform
import sys
from typing import NamedTuple

import pytest

from tests.support.frame_counts import MISSES, Count, count_flows
from tests.support.relay_frames import count_relayed

pytestmark = pytest.mark.skipif(
    (sys.implementation.name, *sys.version_info[:2]) != ("cpython", 3, 11),
    reason=f"the golden numbers are of CPython 3.11, this is {platform.python_version()}: "
    "from 3.12 on comprehensions are no calls",
)


class Golden(NamedTuple):
    """Frames of one request, and the number of files they are in."""

    frames: float
    files: int


GOLDEN = {
    # The request and the page handle are remembered.
    "remembered hit": Golden(13, 7),
    # A cached object is requested for the first time on this listener by a known client.
    "first hit": Golden(69, 24),
    # One of 32 misses in a turn of the loop. Each is fetched, sent and stored. ADR 48: the first byte of one
    # of them is timed, in two calls.
    "miss": Golden(3_101 / MISSES, 57),
    # A binary body with the scores of all 256 samples. ADR 0040: two calls make the change.
    "POST of scores": Golden(41, 15),
    # Cached samples by id, in the order in which they are ready.
    "batch of 256": Golden(3659, 23),
    # A plain read of an object that another node owns, on an idle connection to that node.
    "relayed read, near node": Golden(61, 24),
    # The same read at the owner, which has the object in RAM: the request of a node is signed.
    "relayed read, owner": Golden(20, 11),
}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Count]]:
    return {
        **count_flows(tmp_path_factory.mktemp("frames")),
        **count_relayed(tmp_path_factory.mktemp("relayed")),
    }


@pytest.mark.parametrize("flow", GOLDEN)
def test_a_request_has_the_frames_it_had(counts, flow):
    first, *others = counts[flow]
    golden, found = GOLDEN[flow], Golden(first.frames, first.files)
    # If rounds differed, the count would be worthless.
    assert [other.difference(first) for other in others] == [{}] * len(others)
    if found != golden:
        pytest.fail(explain(flow, golden, found, first), pytrace=False)


def explain(flow: str, golden: Golden, found: Golden, count: Count) -> str:
    """Say what changed, what to do about it, and where the frames are."""
    rose = found.frames > golden.frames or found.files > golden.files
    advice = (
        "A rise needs an ADR in docs/adr that says what it buys; then change GOLDEN."
        if rose
        else "It fell: change GOLDEN, so that it does not rise again."
    )
    change = (
        f"{flow}: {golden.frames:.10g} frames in {golden.files} files before, "
        f"{found.frames:.10g} in {found.files} now."
    )
    most = count.by_file().most_common(10)
    lines = [f"{frames / count.requests:10.2f}  {file}" for file, frames in most]
    return "\n".join([f"{change} {advice}", "The files with most frames:", *lines])
