"""The kinds of plain S3 requests that a soak reads with. Each function sends requests of one kind, and the
session judges the answers.
"""

import time
from collections.abc import Callable

from shadeproxy_bench.reliability.kit.bodies import (
    CHECKED_COLUMNS_BYTES,
    COLUMNS_BYTES,
    LARGEST_BYTES,
    PAGE_BYTES,
)
from shadeproxy_bench.reliability.kit.link import Cut, Pace
from shadeproxy_bench.reliability.soak.session import Session, Span

_SMALL = (0, 1, 4096, 100_000, 100_000)
_MIDDLE = (100_000, 100_000, 100_000, 1_000_000)
_EDGES = (PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES + 1)
_BIG = (2 * PAGE_BYTES + 1, LARGEST_BYTES)
_IN_COLUMNS = (COLUMNS_BYTES, CHECKED_COLUMNS_BYTES)
_COLUMNS, _COLUMN_BYTES = 9, 30_000
_LAST_BYTES = (1, 22, 65_536, 65_536, PAGE_BYTES - 1, PAGE_BYTES + 1, 2 * PAGE_BYTES)
_WHOLE_INSTEAD = 0.05
_UNWRITTEN_TRIES = 8
_PIPELINED = 6
_SLOW_S = 3.0
SIP_BYTES = 16 * 1024
"""Bytes that a slow client reads at a time. Its receive buffer is no larger, so that the proxy has to wait
for it.
"""


def whole(session: Session) -> None:
    sizes = session.random.choices((_SMALL, _MIDDLE, _EDGES, (LARGEST_BYTES,)), (30, 64, 5, 1))[0]
    number = session.pick(*sizes)
    asked = session.asked("get", number, (0, session.data.sizes[number]), 200)
    session.exchange(asked, session.request("GET", number))


def part(session: Session) -> None:
    """Read a range: across a page boundary, from the begin of a page, at the end, open-ended, or beyond the
    end.
    """
    number = session.pick(*_EDGES, *_BIG, *_BIG, 1_000_000, 100_000)
    size_bytes = session.data.sizes[number]
    field, span = _range(session, size_bytes)
    asked = session.asked("range", number, span, 206)
    session.exchange(asked, session.request("GET", number, f"Range: {field}"))


def columns(session: Session) -> None:
    """Read one or two of the few short parts that all readers of an object read. Sometimes read the whole
    object instead.
    """
    number = session.pick(*_IN_COLUMNS)
    size_bytes = session.data.sizes[number]
    if session.random.random() < _WHOLE_INSTEAD:
        asked = session.asked("columns", number, (0, size_bytes), 200)
        session.exchange(asked, session.request("GET", number))
        return
    start = session.random.randrange(_COLUMNS) * size_bytes // _COLUMNS
    first, last = session.random.choice(((0, 1), (1, 2), (0, 2)))
    span = start + first * _COLUMN_BYTES, start + last * _COLUMN_BYTES
    asked = session.asked("columns", number, span, 206)
    session.exchange(asked, session.request("GET", number, f"Range: bytes={span[0]}-{span[1] - 1}"))


def last(session: Session) -> None:
    """Read the last bytes of an object; see ``last_of``."""
    last_of(session, session.pick(4096, *_MIDDLE, *_EDGES, *_EDGES, *_IN_COLUMNS, *_BIG))


def last_of(session: Session, number: int) -> None:
    """Read the last bytes: a few, those of several pages, or all. Half of the reads name the version."""
    size_bytes = session.data.sizes[number]
    count = session.random.choice(_LAST_BYTES)
    named = session.random.random() < 0.5
    span = (max(size_bytes - count, 0), size_bytes)
    asked = session.asked("if-match" if named else "last bytes", number, span, 206)
    tag = session.data.tag(number, asked.before)
    fields = [f"Range: bytes=-{count}", *([f"If-Match: {tag}"] if named else [])]
    session.exchange(asked, session.request("GET", number, *fields))


def beyond(session: Session) -> None:
    number = session.pick(*_SMALL)
    size_bytes = session.data.sizes[number]
    asked = session.asked("416", number, None, 416)
    session.exchange(asked, session.request("GET", number, f"Range: bytes={size_bytes}-"))


def head(session: Session) -> None:
    number = session.pick(*_SMALL, *_MIDDLE, *_BIG)
    session.exchange(session.asked("head", number, None, 200), session.request("HEAD", number))


def if_match(session: Session) -> None:
    number = session.pick(*_MIDDLE, *_EDGES)
    span = (0, session.data.sizes[number])
    fields: list[str] = []
    if session.random.random() < 0.5:
        field, span = _range(session, session.data.sizes[number])
        fields.append(f"Range: {field}")
    asked = session.asked("if-match", number, span, 206 if fields else 200)
    fields.append(f"If-Match: {session.data.tag(number, asked.before)}")
    session.exchange(asked, session.request("GET", number, *fields))


def if_match_fails(session: Session) -> None:
    number = session.pick(*_MIDDLE)
    asked = session.asked("412", number, None, 412)
    session.exchange(asked, session.request("GET", number, 'If-Match: "of-nothing"'))


def not_modified(session: Session) -> None:
    number = next(
        (n for n in (session.pick(*_MIDDLE) for _ in range(_UNWRITTEN_TRIES)) if not session.data.changes(n)),
        next(n for n in session.data.ranges[4096] if not session.data.changes(n)),
    )
    asked = session.asked("304", number, None, 304)
    tag = session.data.tag(number, asked.before)
    session.exchange(asked, session.request("GET", number, f"If-None-Match: {tag}"))


def pipelined(session: Session) -> None:
    exchanges = []
    for _ in range(_PIPELINED):
        number = session.pick(*_SMALL, *_MIDDLE)
        asked = session.asked("pipelined", number, (0, session.data.sizes[number]), 200)
        exchanges.append((asked, session.request("GET", number)))
    session.pipeline(exchanges)


def slow(session: Session) -> None:
    """Read a big object, 16 KiB at a time, over about three seconds."""
    number = session.pick(1_000_000, *_EDGES, *_BIG)
    size_bytes = session.data.sizes[number]
    asked = session.asked("slow", number, (0, size_bytes), 200)
    pace = Pace(SIP_BYTES, _SLOW_S / (size_bytes // SIP_BYTES))
    session.exchange(asked, session.request("GET", number), pace=pace)


def hang_up(session: Session) -> None:
    """Hang up at a random moment: within the request's head, before the answer, or in the middle of the
    body.
    """
    number = session.pick(100_000, 1_000_000, *_EDGES, *_BIG)
    request = session.request("GET", number)
    try:
        if session.random.random() < 0.2:
            session.link.send(request[: session.random.randrange(1, len(request))])
        else:
            session.link.send(request)
            if session.random.random() < 0.8:
                session.link.taste(session.random.choice((1, 200, 4096, 262_144)))
            time.sleep(session.random.choice((0.0, 0.002, 0.02)))
    except (Cut, OSError) as error:
        asked = session.asked("hang up", number, None, 200)
        session.failed("hang up", session.broken(asked, error), repr(error))
    else:
        session.tally.answered("hang up")
    finally:
        session.link.close()
    # Pause before the next connection. At full speed, connections in TIME_WAIT would use up the local ports.
    time.sleep(0.01)


MIXED: tuple[tuple[Callable[[Session], None], float], ...] = (
    (whole, 44),
    (part, 25),
    (columns, 15),
    (last, 8),
    (pipelined, 8),
    (head, 8),
    (if_match, 6),
    (not_modified, 4),
    (if_match_fails, 2),
    (beyond, 3),
)


def mixed(session: Session) -> None:
    """Make one request of a kind that is drawn by weight."""
    functions, weights = zip(*MIXED, strict=True)
    session.random.choices(functions, weights)[0](session)


def _range(session: Session, size_bytes: int) -> tuple[str, Span]:
    """Return a value of the header field Range, and the half-open span of bytes that it names."""
    form = session.random.randrange(5)
    length = session.random.choice((1, 4096, 65_537, 262_144, 1_000_000))
    start = session.random.randrange(size_bytes)
    if form == 0:
        first = start // PAGE_BYTES * PAGE_BYTES
        return f"bytes={first}-{first + length - 1}", (first, min(first + length, size_bytes))
    if form == 1:
        return f"bytes=-{length}", (max(size_bytes - length, 0), size_bytes)
    if form == 2:
        first = max(start, size_bytes - length)
        return f"bytes={first}-", (first, size_bytes)
    if form == 3 and size_bytes > PAGE_BYTES + 1:
        edge = session.random.randrange(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES
        first, last = edge - session.random.randrange(1, 5000), edge + session.random.randrange(5000)
        return f"bytes={first}-{last}", (first, min(last + 1, size_bytes))
    return f"bytes={start}-{start + length - 1}", (start, min(start + length, size_bytes))
