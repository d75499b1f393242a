"""The entry function of the compiled lane, and the fields of objects that it reads directly in memory.

Other fields are looked up by name.
"""

import sys
from array import array

import pytest

from shadeproxy.api.s3.compiled import compiled_hits
from shadeproxy.api.s3.connection import S3Protocol
from shadeproxy.api.s3.request_cache import RequestCache
from shadeproxy.api.s3.sender import Sender
from shadeproxy.api.s3.signed import Templates
from shadeproxy.core.memo import Memo
from shadeproxy.core.types import Span
from shadeproxy.engine.base import PageHandle
from shadeproxy.engine.read.access_log import AccessLog
from tests.support.s3.compiled import Both, Sink
from tests.support.s3.lane import request

from shadeproxy.api.s3._request_cache import data_received, learn_slots  # isort: skip  (test_compiled skips without it)

FIELDS = learn_slots(S3Protocol)
WARM_KEYS = ("k",)


class Connection:
    """A stand-in for an S3Protocol that waits for its next request. Its fields are read by name."""

    __slots__ = ()

    def __init__(self, hits, **other):
        self.hits, self.transport, self._sender = hits, self, Sink()
        self._sender.waiting = None
        self._held, self._reading = b"", None
        self._ending = self._paused = self._active = False
        self._begun, self.left = 0, []
        self.closing = False
        for name, value in other.items():
            setattr(self, name, value)

    def is_closing(self):
        return self.closing

    def receive(self, data):
        self.left.append(data)


@pytest.fixture
def learning():
    """Yield a function that makes a class of connections, whose slots the compiled lane can learn.

    After the test, the lane learns the slots of S3Protocol again.
    """
    yield lambda name, fields: type(name, (Connection,), fields)
    learn_slots(S3Protocol)


@pytest.fixture(params=["by name", "in place"])
def connect(request, learning):
    """Return a class of connections: one whose fields are read by name, or one that is read in memory."""
    if request.param == "by name":
        return learning("Named", {})
    kind = learning("S3Protocol", {"__slots__": (*FIELDS, "hits", "left", "closing")})
    assert learn_slots(kind) == FIELDS
    return kind


@pytest.fixture
def hits(warm):
    memory, engine = warm.lane._memory, warm.engine
    return compiled_hits(memory, engine, engine.hits, otherwise=lambda *_: None, clock=warm.clock)


def test_one_whole_request_is_answered_where_it_comes(hits, connect):
    one, raw = connect(hits), request("/b/k", close=False)
    data_received(one, raw)
    assert one._sender.sent.startswith(b"HTTP/1.1 200")
    assert (one.left, one._begun, one._active, hits.answered) == ([], 1, True, 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"G", request("/b/k", close=False)[:-1], request("/b/k", close=False) * 2,
     request("/b/k", close=False) + b"G", request("/b/k", close=False) + b"Range: bytes=0-9\r\n",
     request("/b/k", close=False) + b"Range: bytes=0-9\r\n\r\n", request("/b/none", close=False),
     request("/b/k"), bytearray(request("/b/k", close=False))],
    ids=["nothing", "a byte", "no end", "two", "one and a byte", "one and a field", "one and a block",
         "another key", "another client", "no bytes"],
)  # fmt: skip
def test_what_is_no_known_whole_request_is_left_as_it_came(hits, connect, data):
    one = connect(hits)
    data_received(one, data)
    assert one.left == [data]
    assert (one._sender.sent, one._begun, one._active, hits.answered) == (b"", 0, False, 0)


@pytest.mark.parametrize(
    "other",
    [{"_held": b"x"}, {"_sender": None}, {"transport": None}, {"closing": True}, {"_ending": True},
     {"_paused": True}, {"_reading": object()}, {"busy": True}],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_a_connection_that_is_not_between_two_requests_is_left_alone(hits, connect, other):
    one, raw = connect(hits, **({} if "busy" in other else other)), request("/b/k", close=False)
    if "busy" in other:
        one._sender.waiting = object()
    data_received(one, raw)
    assert one.left == [raw]
    assert hits.answered == 0


class Counted:
    """A memo that counts how often the compiled lane looks at it."""

    def __init__(self, memo):
        self._memo, self.looks = memo, 0

    @property
    def young(self):
        self.looks += 1
        return self._memo.young


def test_what_was_not_found_is_not_looked_for_twice(hits, warm, monkeypatch):
    one, raw = type("Named", (Connection,), {})(hits), request("/b/none", close=False)
    targets = Counted(warm.lane._memory.targets)
    monkeypatch.setattr(warm.lane._memory, "targets", targets)
    one.receive = lambda data: one.left.append(hits.answer(data, one._sender))
    data_received(one, raw)
    assert (one.left, targets.looks) == ([None], 1)
    assert hits.answer(raw, one._sender) is None
    assert targets.looks == 2


@pytest.mark.parametrize(
    ("owner", "fields"),
    [
        (S3Protocol, 8),
        (Sender, 3),
        (PageHandle, 13),
        (RequestCache, 4),
        (Memo, 1),
        (Templates, 1),
        (AccessLog, 4),
    ],
)
def test_all_that_is_read_of_an_object_has_its_place_in_it(owner, fields):
    """The compiled lane reads every field of these classes directly in memory.

    A field that lost its slot would be looked up by name, which is slower, and no other test would notice.
    """
    assert len(learn_slots(owner)) == fields


def test_an_object_of_a_class_made_of_it_is_read_in_place_too(hits, learning):
    """Objects of a subclass are read in memory too, because every connection is of a subclass.

    ``compiled_protocol`` in compiled.py makes this subclass.
    """
    kind = learning("S3Protocol", {"__slots__": (*FIELDS, "hits", "left", "closing")})
    learn_slots(kind)
    one = type("Compiled", (kind,), {"__slots__": ()})(hits)
    type(one)._paused = False  # Now this field must be read by name.
    data_received(one, request("/b/k", close=False))
    assert hits.answered == 1


def test_nothing_is_kept_or_lost_by_reading_in_place(hits, connect):
    one, raw = connect(hits), request("/b/k", close=False)
    begun = one._begun = 10**9  # An int to which nothing else refers.
    held = [sys.getrefcount(thing) for thing in (begun, one._sender, hits)]
    blocks = []
    for _ in range(4):
        for _ in range(300):
            data_received(one, raw)
        one._sender.sent = b""
        blocks.append(sys.getallocatedblocks())
    assert one._begun == 10**9 + 1200
    assert [sys.getrefcount(thing) for thing in (begun, one._sender, hits)] == [held[0] - 1, *held[1:]]
    assert blocks[-1] - blocks[0] < 300


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "_active"])  # _active: never read.
def test_a_field_that_is_not_there_is_missed_by_its_name(hits, connect, field):
    one = connect(hits)
    delattr(one, field)
    with pytest.raises(AttributeError, match=field):
        data_received(one, request("/b/k", close=False))


@pytest.mark.parametrize(
    "instead",
    [property(lambda _: 1, lambda *_: None), Sender.descriptor],
    ids=["property", "slot of another"],
)
def test_what_is_no_slot_of_the_class_is_asked_by_name(hits, learning, instead):
    slots = (*(name for name in FIELDS if name != "_held"), "hits", "left", "closing")
    kind = learning("S3Protocol", {"__slots__": slots, "_held": instead})
    assert learn_slots(kind) == [name for name in FIELDS if name != "_held"]
    one = object.__new__(kind)
    if isinstance(instead, property):
        one.__init__(hits)
        data_received(one, request("/b/k", close=False))
        assert (len(one.left), hits.answered) == (1, 0)


@pytest.mark.parametrize(("first", "slot"), [(1, -1), (0, 1), (0, 1 << 40)])
async def test_beside_the_table_nothing_is_found(warm, monkeypatch, first, slot):
    both, raw = Both(warm), request("/b/k", close=False)
    resident = warm.lane._memory.targets.young[b"/b/k"].handle
    column = memoryview(array("q", [resident.stamp] * 2))
    monkeypatch.setattr(warm.engine.cache.residents, "stamps", column[first : first + 1])
    monkeypatch.setattr(resident, "slot", 0)
    assert both._compiled(raw, Sink())
    monkeypatch.setattr(resident, "slot", slot)
    assert not both._compiled(raw, Sink())


async def test_memory_that_was_given_back_is_not_read(warm, monkeypatch):
    both, raw = Both(warm), request("/b/k", close=False)
    resident = warm.lane._memory.targets.young[b"/b/k"].handle
    window, stamps = memoryview(bytes(1 << 20)), memoryview(bytes(1 << 20)).cast("q")
    places = ((resident, "window", window), (warm.engine.cache.residents, "stamps", stamps))
    for owner, name, gone in places:
        gone.release()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, gone)
            with pytest.raises(ValueError, match="released"):
                both.compiled(raw)
    assert both.compiled(raw) is not None


def test_only_what_is_read_can_be_learnt():
    with pytest.raises(ValueError, match="is not in list"):
        learn_slots(Span)
