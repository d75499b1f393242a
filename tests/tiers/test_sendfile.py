"""Bytes that sendfile has passed to a socket do not change, whatever happens to their record."""

import errno
import os
import socket
from contextlib import suppress

import pytest

from shadeproxy.core.errors import TierFull
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page
from shadeproxy.tiers import sendfile
from shadeproxy.tiers.base import Location, RecordHeader
from shadeproxy.tiers.medium import SYSTEM, SystemCalls
from shadeproxy.tiers.sendfile import allows_sendfile, interior
from shadeproxy.tiers.store import SegmentStore

LENGTH = 300_000


def test_a_medium_that_keeps_lent_pages_lends(tmpfs):
    assert allows_sendfile(tmpfs / "probe")
    assert not list(tmpfs.iterdir())


def test_a_medium_that_changes_lent_pages_does_not(tmpfs, monkeypatch):
    """Sendfile is not used on a medium that changes pages which a socket still holds. ext4 does this since it
    uses large folios: a hole in a part of a folio sets the part to zeros in place.
    """
    monkeypatch.setattr(sendfile, "punch_hole", lambda fd, start, length: os.pwrite(fd, bytes(length), start))
    assert not allows_sendfile(tmpfs / "probe")


@pytest.mark.parametrize(
    ("span", "expected"),
    [((0, 8192), (0, 8192)), ((1, 8192), (4096, 8192)), ((1, 8191), (4096, 4096)), ((10, 20), (4096, 4096))],
)
def test_only_whole_blocks_are_lent(span, expected):
    assert interior(*span) == expected


def opened(path, capacity_bytes=1 << 20, calls=SYSTEM):
    return reopened(path, capacity_bytes, calls)[0]


def reopened(path, capacity_bytes=1 << 20, calls=SYSTEM, **options):
    """Return a store over an existing directory, and the locations of the recovered records."""
    options = {"sendfile": True} | options
    store = SegmentStore("ram", path, capacity_bytes, segment_bytes=1 << 20, calls=calls, **options)
    store.open()
    locations = [
        Location(location)
        for arrival in store.arrivals()
        for contents in store.take_in(arrival)
        for location in contents.rows["location"].tolist()
    ]
    return store, locations


def write(store, key, body):
    page = Page(ObjectRef("b", key), '"e"', 0)
    meta = ObjectMeta('"e"', len(body), ())
    location = store.reserve(store.record_bytes(page, meta, len(body)))
    store.write(location, RecordHeader(page, meta, len(body), 1.0), body)
    return location


@pytest.fixture
def sockets():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=5) as receiver,
    ):
        sender, _ = server.accept()
        with sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            yield sender, receiver


def send_lent(store, location, sender):
    """Send the sendable part of a body by sendfile. Return the bytes that this part had at that moment."""
    sendable, (window, start, stop) = store.sendable_blocks(location), store.window(location)
    first, last = max(start, sendable.start), min(stop, sendable.stop)
    sendable.file.mark_sent(first, last)
    expected = bytes(window[first:last])
    assert os.sendfile(sender.fileno(), sendable.file.descriptor, first, last - first) == last - first
    return expected


def received(receiver, length):
    got = bytearray()
    while len(got) < length:
        got += receiver.recv(length - len(got))
    return bytes(got)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_receiver_has_not_read_survives_release_and_reuse(tmpfs, sockets, restarted):
    sender, receiver = sockets
    store = opened(tmpfs / "ram")
    location = write(store, "old", os.urandom(LENGTH))
    expected = send_lent(store, location, sender)
    if restarted:
        # Sockets may still hold pages that the earlier process has passed to them.
        store.close()
        store = opened(tmpfs / "ram")
    store.release(location)
    for number in range(3):
        write(store, f"new{number}", b"\x55" * LENGTH)
    assert received(receiver, len(expected)) == expected
    store.close()


class Keeping(SystemCalls):
    """System calls of a medium that keeps the bytes of freed blocks, as long as ``left`` is above 0."""

    def __init__(self, failure, left):
        self.failure, self.left = failure, left

    def punch_hole(self, descriptor, start, length):
        self.left -= 1
        if self.left < 0:
            super().punch_hole(descriptor, start, length)
        elif self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failure", [None, OSError(errno.EIO, "broken")])
def test_blocks_that_the_medium_keeps_are_not_overwritten(tmpfs, sockets, failure):
    sender, receiver = sockets
    calls = Keeping(failure, 3)
    store = opened(tmpfs / "ram", capacity_bytes=8 << 20, calls=calls)
    location = write(store, "old", os.urandom(LENGTH))
    expected = send_lent(store, location, sender)
    store.release(location)
    for number in range(6):
        write(store, f"new{number}", b"\x55" * LENGTH)
    assert received(receiver, len(expected)) == expected
    # The punch is repeated with each record that is freed, and at last the room can be used again.
    for number in range(4):
        store.release(write(store, f"next{number}", b"\x66" * 5000))
    assert calls.left < 0
    assert not store._kept
    store.close()


@pytest.mark.parametrize("failure", [None, OSError(errno.EIO, "broken")])
def test_blocks_that_the_medium_keeps_are_not_overwritten_after_a_restart(tmpfs, sockets, failure):
    """Sockets still hold pages that an earlier process has passed to them."""
    sender, receiver = sockets
    store = opened(tmpfs / "ram", calls=Keeping(failure, 10**6))
    neighbour = write(store, "neighbour", bytes(5000))
    location = write(store, "old", os.urandom(LENGTH))
    expected = send_lent(store, location, sender)
    store.release(location)
    store.close()
    calls = Keeping(failure, 10**6)
    store, found = reopened(tmpfs / "ram", 8 << 20, calls)
    assert found == [neighbour]
    for number in range(6):
        write(store, f"new{number}", b"\x55" * LENGTH)
    assert received(receiver, len(expected)) == expected
    assert store.used_bytes >= 7 * LENGTH, "bytes that the medium keeps take room"
    assert store.excess_bytes == 0
    # Each record that is freed causes one more attempt.
    calls.left = 0
    for number in range(4):
        store.release(write(store, f"next{number}", b"\x66" * 5000))
    assert store.used_bytes < 7 * LENGTH
    assert store.disabled_reason is None
    store.close()


def test_a_record_without_room_after_a_restart_keeps_its_blocks_if_the_medium_does(tmpfs, sockets):
    """The capacity was lowered, so that recovery evicts the record."""
    sender, receiver = sockets
    store = opened(tmpfs / "ram")
    write(store, "first", bytes(LENGTH))
    expected = send_lent(store, write(store, "old", os.urandom(LENGTH)), sender)
    store.close()
    store, found = reopened(tmpfs / "ram", LENGTH + 100_000, Keeping(None, 10**6))
    assert len(found) == 1
    with suppress(TierFull):
        write(store, "new", b"\x55" * 90_000)
    assert store.excess_bytes == 0
    assert received(receiver, len(expected)) == expected
    store.close()


def test_a_medium_that_cannot_tell_its_holes_keeps_them_all(tmpfs, monkeypatch):
    """Recovery goes on, and writes nothing where a socket may still read."""
    store = opened(tmpfs / "ram")
    for key in ("first", "old"):
        write(store, key, bytes(LENGTH))
    store.close()
    arrivals, real = SegmentStore.arrivals, os.lseek

    def lseek(descriptor, position, how):
        if how == os.SEEK_DATA:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, position, how)

    def then_fails(store):
        for arrival in arrivals(store):
            monkeypatch.setattr(os, "lseek", lseek)
            yield arrival
            monkeypatch.setattr(os, "lseek", real)

    monkeypatch.setattr(SegmentStore, "arrivals", then_fails)
    store, found = reopened(tmpfs / "ram", LENGTH + 100_000, SystemCalls())
    assert len(found) == 1
    assert not store.pending_segments
    with pytest.raises(TierFull):
        write(store, "new", bytes(90_000))
    store.close()


def test_one_block_that_the_medium_keeps_costs_one_record_and_not_the_tier(tmpfs, sockets):
    sender, receiver = sockets

    class KeepingOne(SystemCalls):
        def punch_hole(self, descriptor, start, length):
            if start >= 4096:
                super().punch_hole(descriptor, start, length)

    store = opened(tmpfs / "ram", calls=KeepingOne())
    locations = [write(store, f"k{number}", bytes(20_000)) for number in range(20)]
    received(receiver, len(send_lent(store, locations[0], sender)))
    for location in locations:
        store.release(location)
    assert store.disabled_reason is None
    assert list(store._kept) == locations[:1]
    assert store.excess_bytes == 0
    assert store.used_bytes < 40_000
    store.close()


def test_a_medium_that_keeps_all_blocks_gets_no_more_pages(tmpfs, sockets):
    sender, receiver = sockets
    store = opened(tmpfs / "ram", capacity_bytes=64 << 20, calls=Keeping(None, 10**6))
    for number in range(100):
        if store.disabled_reason is not None:
            break
        location = write(store, f"k{number}", bytes(100_000))
        received(receiver, len(send_lent(store, location, sender)))
        store.release(location)
    assert store.disabled_reason == (
        "tier ram takes no more pages: the medium keeps many blocks that were freed"
    )
    assert number > 60
    store.close()


def test_blocks_of_a_disk_are_punched_in_the_order_of_its_writes(tmpfs):
    """The writer's thread of a disk does that, because a disk may hang."""
    waiting = []

    def submit(action):
        waiting.append(action) if now_waits else action()

    now_waits, calls = False, Keeping(None, 0)
    store = opened(tmpfs / "disk")
    write(store, "old", bytes(LENGTH))
    store.close()
    store, (location,) = reopened(tmpfs / "disk", calls=calls, sendfile=False, submit=submit)
    before, now_waits = calls.left, True
    store.release(location)
    assert calls.left == before
    for action in waiting:
        action()
    assert calls.left < before
    now_waits = False
    store.close()


def test_what_was_not_lent_is_reused_without_asking_the_file_system(tmpfs):
    store = opened(tmpfs / "ram")
    store.release(write(store, "k", bytes(LENGTH)))
    assert store.slack_bytes > LENGTH - 8192
    store.close()


def test_books_balance_when_lent_blocks_are_freed(tmpfs, sockets):
    sender, receiver = sockets
    store = opened(tmpfs / "ram")
    store.release(write(store, "first", bytes(5000)))
    empty = store.used_bytes  # This includes the overhead of a segment.
    locations = [write(store, f"k{number}", bytes(100_000)) for number in range(5)]
    for location in locations[::2]:
        received(receiver, len(send_lent(store, location, sender)))
    for location in locations:
        store.release(location)
    assert store.used_bytes == empty
    assert 0 <= store.slack_bytes <= 3 * 100_000
    write(store, "again", bytes(500_000))
    assert store.used_bytes <= store.capacity_bytes
    store.close()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_long_body_is_lent_to_its_end_and_keeps_it_whoever_comes_next(tmpfs, sockets, restarted):
    sender, receiver = sockets
    store = opened(tmpfs / "ram")
    location = write(store, "long", os.urandom(100_001))
    expected = send_lent(store, location, sender)
    window, _, stop = store.window(location)
    assert expected[-100:] == window[stop - 100 : stop]
    if restarted:
        store.close()
        store, (location,) = reopened(tmpfs / "ram")
    neighbours = [write(store, f"n{number}", bytes([number]) * 500) for number in range(20)]
    store.release(location)
    for number in range(200):
        write(store, f"small{number}", b"\x55" * 400)
    assert received(receiver, len(expected)) == expected
    assert [bytes(store.pin(one)) for one in neighbours] == [bytes([number]) * 500 for number in range(20)]
    store.close()


def test_records_reserved_together_are_placed_as_one_by_one(tmpfs):
    lengths = [LENGTH, 9_000, 100, LENGTH + 77, 65_536, 64]
    found = []
    for together in (False, True):
        store = opened(tmpfs / f"{together}", 1 << 21)
        write(store, "first", bytes(1))
        first = store.used_bytes
        locations = store.reserve_many(lengths) if together else [store.reserve(one) for one in lengths]
        found.append((locations, store.used_bytes))
        for location in locations:
            store.release(location)
        assert store.used_bytes == first
        store.close()
    assert found[0] == found[1]


def test_records_without_room_for_all_together_get_none(tmpfs):
    store = opened(tmpfs / "ram", 600_000)
    write(store, "first", bytes(1))
    used_bytes = store.used_bytes
    assert store.reserve_many([LENGTH] * 2) is None
    assert store.reserve_many([LENGTH] * 8) is None, "longer than a segment"
    assert store.used_bytes == used_bytes
    assert len(store.reserve_many([LENGTH, LENGTH // 2])) == 2
    store.close()


def test_short_records_share_their_blocks(tmpfs):
    store = opened(tmpfs / "ram")
    write(store, "first", bytes(1))
    empty = store.used_bytes
    for number in range(8):
        write(store, f"k{number}", bytes(9_000))
    assert store.used_bytes - empty < 8 * 10_240
    store.close()


def test_the_place_of_a_record_that_was_sent_is_not_taken_over(tmpfs, sockets):
    sender, _ = sockets
    store = opened(tmpfs / "tier")
    location = write(store, "k", os.urandom(LENGTH))
    send_lent(store, location, sender)
    assert store.take_over([location], [LENGTH]) == [None]
    store.release(location)
    location = write(store, "k", os.urandom(LENGTH))
    assert store.take_over([location], [LENGTH]) != [None]
    store.close()


def test_the_end_of_a_room_that_a_shorter_record_takes_over_is_free(tmpfs):
    store = opened(tmpfs / "tier")
    location = write(store, "long", os.urandom(LENGTH))
    used_bytes = store.used_bytes
    (shorter,) = store.take_over([location], [LENGTH // 3])
    assert store.used_bytes == pytest.approx(used_bytes - LENGTH * 2 // 3, abs=8192)
    rest = store.reserve(LENGTH // 2)
    assert store.used_bytes == pytest.approx(used_bytes - LENGTH // 6, abs=8192)
    store.release(rest)
    store.release(shorter)
    assert store.used_bytes <= used_bytes - LENGTH
    store.close()
