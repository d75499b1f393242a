"""While other clients miss, fetches for announced orders only just fill the origin's link."""

import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.prefetch.beside import BesideOthers
from shadeproxy.prefetch.limits import Limits
from tests.support.clock import ManualClock

SIZE = 100_000
STRANGER, OWN = ObjectRef("b", "other"), ObjectRef("b", "own")


class Fetches:
    """Fetches of one job, 100 under way if there is room, over a link that brings one in 10 ms."""

    def __init__(self):
        self.clock = ManualClock(0.0)
        self.is_shared = False
        limits = Limits(0, lambda: 0, 0, 0, is_shared=lambda: self.is_shared, jobs_of=self._jobs_of)
        self.beside = BesideOthers(self.clock.monotonic_s, limits)
        self.flying = 0

    def _jobs_of(self, hashes):
        return ["job" if one == object_hash(OWN) else None for one in hashes]

    def miss(self, reader=STRANGER):
        self.beside.note_miss(reader)

    def run(self, seconds, *, missing=False):
        """Fetch for ``seconds``. ``missing``: another client misses all the time."""
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)
            if missing:
                self.miss()
            self.beside.look({"job"})
            if self.flying:
                self.flying -= 1
                self.beside.end(SIZE, has_come=True)
            while self.flying < 100 and self.beside.has_room():
                self.flying += 1
                self.beside.begin(SIZE)


@pytest.fixture
def fetches():
    one = Fetches()
    one.run(3.0)
    return one


def test_there_is_no_limit_while_no_other_client_misses(fetches):
    fetches.run(60.0)
    assert fetches.flying == 100


def test_while_another_client_misses_few_fetches_are_under_way(fetches):
    fetches.run(5.0, missing=True)
    assert fetches.flying <= 4


@pytest.mark.parametrize("reader", [JobContext("silent"), JobContext("unknown", 3, 1)])
def test_a_job_without_an_announced_order_is_another_client(fetches, reader):
    fetches.miss(reader)
    fetches.run(1.5)
    assert fetches.flying <= 4


@pytest.mark.parametrize("reader", [JobContext("job"), OWN])
def test_misses_of_the_job_itself_limit_nothing(fetches, reader):
    for _ in range(50):
        fetches.miss(reader)
        fetches.run(0.1)
    assert fetches.flying == 100


def test_the_limit_ends_two_seconds_after_the_last_miss(fetches):
    fetches.run(3.0, missing=True)
    fetches.run(1.9)
    assert fetches.flying <= 4
    fetches.run(0.2)
    assert fetches.flying == 100


def test_a_client_that_waits_behind_many_fetches_is_protected_afterwards(fetches):
    """A hundred fetches take a second. The client asks for its next object after that, and after a pause."""
    fetches.miss()
    fetches.run(2.7)
    assert fetches.flying <= 4
    fetches.run(0.5)
    assert fetches.flying == 100


def test_a_miss_of_long_ago_limits_nothing(fetches):
    fetches.miss()
    for _ in range(100):
        fetches.beside.end(SIZE, has_come=True)
    fetches.flying = 0
    fetches.clock.advance(60.0)  # The job made no read, so nothing was decided.
    fetches.run(1.0)
    assert fetches.flying == 100


def test_there_is_no_limit_while_jobs_share_the_link(fetches):
    fetches.is_shared = True
    fetches.run(5.0, missing=True)
    assert fetches.flying == 100


def test_a_client_that_comes_back_is_protected_at_once(fetches):
    """The link is known from before. So fewer fetches are begun at once, without a measurement."""
    fetches.run(5.0, missing=True)
    fetches.run(10.0)
    assert fetches.flying == 100
    fetches.run(1.1, missing=True)
    assert fetches.flying <= 4
