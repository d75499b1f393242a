"""The frame budget: how many Python calls a request of each kind costs, and how many files these calls are
in.

Times vary from run to run, and these numbers do not. tests/support/frame_counts.py says what is counted. If a
number rises, an ADR in docs/adr must say what the calls buy. If a number falls, it is changed here too, so
that it does not rise again.
"""

import platform
import sys
from typing import NamedTuple

import pytest

from tests.support.frame_counts import MISSES, Count, count_flows
from tests.support.relay_frames import count_relayed
from tests.support.worker_frames import count_coordinator

pytestmark = pytest.mark.skipif(
    (sys.implementation.name, *sys.version_info[:2]) != ("cpython", 3, 11),
    reason=f"the golden numbers are of CPython 3.11, this is {platform.python_version()}: "
    "from 3.12 on comprehensions are no calls",
)


class Golden(NamedTuple):
    """The frames of one request, and the number of files that they are in."""

    frames: float
    files: int


GOLDEN = {
    # The request cache knows the request, and the page handle is valid.
    "remembered hit": Golden(13, 7),
    # A known client asks for a cached object for the first time on this listener.
    "first hit": Golden(69, 24),
    # The mean of 32 misses in one turn of the event loop. Each is fetched, sent and stored. The first byte of
    # one miss is timed, in two calls (ADR 48). Their arrival is noted together (ADR 89).
    "miss": Golden(3_008 / MISSES, 57),
    # An upload whose head and body arrive together. The connection to the origin is idle.
    "PUT of 10 KB": Golden(350, 66),
    # A binary body with scores of all 256 samples. Two of the calls make the change (ADR 0040); one computes
    # what reads need of the scores (ADR 0070).
    "POST of scores": Golden(42, 15),
    # Cached samples by id, sent in the order in which they are ready.
    "batch of 256": Golden(3659, 23),
    # A client's plain read of an object that another node owns. The connection to that node is idle.
    "relayed read, near node": Golden(61, 24),
    # The same read at the owner, which has the object in RAM. The near node has signed the request.
    "relayed read, owner": Golden(20, 11),
    # The coordinator's part of a miss of a worker's client: the mean of 32 misses of four workers.
    "worker's miss, coordinator": Golden(1_937 / MISSES, 40),
}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Count]]:
    return {
        **count_flows(tmp_path_factory.mktemp("frames")),
        **count_relayed(tmp_path_factory.mktemp("relayed")),
        "worker's miss, coordinator": count_coordinator(tmp_path_factory.mktemp("coordinator")),
    }


@pytest.mark.parametrize("flow", GOLDEN)
def test_a_request_has_the_frames_it_had(counts, flow):
    first, *others = counts[flow]
    golden, found = GOLDEN[flow], Golden(first.frames, first.files)
    # If one round differs from another one, the count means nothing.
    assert [other.difference(first) for other in others] == [{}] * len(others)
    if found != golden:
        pytest.fail(explain(flow, golden, found, first), pytrace=False)


def explain(flow: str, golden: Golden, found: Golden, count: Count) -> str:
    """Return a text that says what has changed, what to do about it, and which files have most frames."""
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
