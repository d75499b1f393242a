"""The faulty medium injects the scheduled faults in order. The same seed gives the same faults."""

import errno
import os
from contextlib import suppress

import pytest

from shadeproxy.core.errors import TierError
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled

ERRORS = {
    MediumFault.WRITE_EIO: errno.EIO,
    MediumFault.WRITE_ENOSPC: errno.ENOSPC,
    MediumFault.WRITE_EROFS: errno.EROFS,
}


@pytest.fixture
def descriptor(tmp_path):
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(opened, bytes(range(256)) * 64, 0)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("fault", ERRORS)
def test_a_write_fails_as_told_and_changes_nothing(descriptor, fault):
    calls = FaultyCalls(scheduled(script=[fault]))
    with pytest.raises(OSError, match=os.strerror(ERRORS[fault])) as raised:
        calls.pwrite(descriptor, b"other", 0)
    assert raised.value.errno == ERRORS[fault]
    assert os.pread(descriptor, 5, 0) == bytes(range(5))
    assert calls.pwrite(descriptor, b"other", 0) == 5


def test_an_entry_waits_for_a_call_that_it_fits(descriptor):
    noted = []
    calls = FaultyCalls(scheduled(script=[MediumFault.READ_EIO, MediumFault.WRITE_SHORT], noted=noted.append))
    assert calls.pwrite(descriptor, b"whole", 0) == 5
    with pytest.raises(OSError, match="Input/output error"):
        calls.pread(descriptor, 5, 0)
    assert calls.pwrite(descriptor, b"halved", 100) == 3
    assert os.pread(descriptor, 6, 100) == b"hal" + bytes([103, 104, 105])
    assert noted == [MediumFault.READ_EIO, MediumFault.WRITE_SHORT]


def test_a_torn_write_leaves_its_first_half(descriptor):
    calls = FaultyCalls(scheduled(script=[MediumFault.WRITE_TORN]))
    assert calls.pwrite(descriptor, b"abcdef", 0) == 3
    with pytest.raises(OSError, match="Input/output error"):
        calls.pwrite(descriptor, b"def", 3)
    assert os.pread(descriptor, 6, 0) == b"abc" + bytes([3, 4, 5])


def test_a_lost_hole_keeps_its_blocks(descriptor):
    calls = FaultyCalls(scheduled(script=[MediumFault.PUNCH_LOST]))
    calls.punch_hole(descriptor, 0, 4096)
    assert os.pread(descriptor, 2, 1) == bytes([1, 2])
    calls.punch_hole(descriptor, 0, 4096)
    assert os.pread(descriptor, 2, 1) == bytes(2)


def test_the_same_seed_gives_the_same_faults(descriptor):
    def history(seed):
        turn, noted = 0, []
        rates = {MediumFault.READ_EIO: 0.2, MediumFault.READ_SLOW: 0.2}
        schedule = scheduled(rates=rates, seed=seed, noted=lambda fault: noted.append((turn, fault)))
        calls = FaultyCalls(schedule, slow_s=0.0)
        while turn < 200:
            turn += 1
            with suppress(OSError):
                calls.pread(descriptor, 1, 0)
        return noted

    assert history(1) == history(1) != history(2)
    assert 50 < len(history(1)) < 110
    assert {fault for _, fault in history(1)} == {MediumFault.READ_EIO, MediumFault.READ_SLOW}


def test_a_store_over_it_keeps_its_promise(bench, sample):
    """A store over a faulty medium returns only bytes that were written, whatever faults hit writes, erasures
    and holes.
    """
    rates = dict.fromkeys(MediumFault, 0.02)
    rates[MediumFault.WRITE_EROFS] = 0.0
    store, _ = bench.open(
        calls=FaultyCalls(scheduled(rates=rates, seed=3), slow_s=0.0), capacity_bytes=1 << 19
    )
    held = {}
    for number in range(400):
        page = sample(number, 3000 + number * 7)
        try:
            held[bench.add(store, page)] = page
        except TierError:
            if store.disabled_reason:
                break
            for location in list(held)[:3]:
                del held[location]
                store.release(location)
    assert held
    for location, page in held.items():
        try:
            assert store.load(location).page == page.header.page
        except TierError:
            continue  # The read failed with an error, as it should.
        assert bytes(store.pin(location)) == page.body
