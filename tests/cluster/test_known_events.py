"""Events count once: the numbers of applied events, and what a proxy that joins learns of them."""

from shadeproxy.cluster.known_events import KnownEvents


def restored(known):
    found = KnownEvents()
    found.restore(known.export())
    return found


def test_an_event_counts_once():
    known = KnownEvents()
    assert not known.has("a", "k", 1, 7)
    known.note("a", "k", 1, 7)
    for one in (known, restored(known)):
        assert one.has("a", "k", 1, 7)
        assert not one.has("a", "k", 1, 8)
        assert not one.has("b", "k", 1, 7)


def test_an_event_that_others_overtook_still_counts_at_a_proxy_that_joins():
    """Content with long blobs is stored before its event is sent. Meanwhile later events may be sent."""
    known = KnownEvents()
    for number in (1, 2, 4):
        known.note("a", "k", 1, number)
    assert not restored(known).has("a", "k", 1, 3)
    assert all(restored(known).has("a", "k", 1, number) for number in (1, 2, 4))


def test_numbers_that_are_no_longer_kept_count_as_known():
    known = KnownEvents()
    for number in range(1, 3001):
        known.note("a", "k", 1, number)
    for one in (known, restored(known)):
        assert one.has("a", "k", 1, 5)
        assert one.has("a", "k", 1, 3000)
        assert not one.has("a", "k", 1, 3001)


def test_an_event_of_an_earlier_boot_counts_if_it_is_read_from_another_stream():
    """A proxy that joins reads one stream after the other. So the changes that a proxy sent after its restart
    may come before the scores that it sent before.
    """
    known = KnownEvents()
    known.note("a", "k", 2, 1)
    assert known.has("a", "k", 1, 9)
    assert not known.has("a", "s:j", 1, 9)


def test_the_number_of_streams_that_are_kept_is_bounded():
    known = KnownEvents()
    for stream in range(2000):
        known.note("a", f"s:{stream}", 1, 1)
        known.note("a", "k", 1, stream)
    assert len(known.export()) <= 512
    assert known.has("a", "k", 1, 1999)


def test_changes_of_a_node_stay_known_however_many_streams_of_scores_there_are():
    """A change that is applied twice may begin a run twice."""
    known = KnownEvents()
    known.note("a", "k", 1, 7)
    for number in range(2000):
        known.note("a", f"s:job{number}", 1, number)
    assert known.has("a", "k", 1, 7)
    assert known.has("a", "s:job1999", 1, 1999)
    assert not known.has("a", "s:job0", 1, 0)
    assert len(known.export()) < 600
