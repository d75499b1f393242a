"""The only writer of a soak. It overwrites objects through the proxy, reads each back at once, and purges
prefixes.
"""

import hashlib
from http.client import HTTPConnection

import msgspec

from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy_bench.reliability.kit.bodies import (
    BUCKET,
    CHECKED_COLUMNS_BYTES,
    COLUMNS_BYTES,
    PAGE_BYTES,
)
from shadeproxy_bench.reliability.kit.link import Cut
from shadeproxy_bench.reliability.kit.purges import end_of_purge
from shadeproxy_bench.reliability.soak import reads
from shadeproxy_bench.reliability.soak.session import Session

_SIZES = (
    *(0, 1, 4096, 100_000, 100_000, 100_000, 1_000_000),
    *(PAGE_BYTES + 1, COLUMNS_BYTES, CHECKED_COLUMNS_BYTES, 2 * PAGE_BYTES + 1),
)
_TRIES, _LAST_FIRST = 20, 0.5


def overwrite(session: Session) -> None:
    """PUT the next version of an object, and read it back. After the answer 200 to the PUT, no reader may get
    an older version.
    """
    picked = (session.pick(*_SIZES) for _ in range(_TRIES))
    number = next((number for number in picked if session.data.is_written(number)), None)
    if number is None:
        return
    version = session.versions.start(number)
    body = session.data.body(number, version)
    hashed = len(body) <= 100_000 and session.random.random() < 0.5
    payload_hash = hashlib.sha256(body).hexdigest() if hashed else UNSIGNED_PAYLOAD
    fields = (f"Content-Length: {len(body)}", f"x-amz-meta-version: {version}")
    asked = session.asked("put", number, None, 200)
    head = session.request("PUT", number, *fields, payload_hash=payload_hash)
    try:
        session.link.send(head + bytes(body))
        answer = session.link.receive()
    except (Cut, OSError) as error:
        session.link.close()
        outcome = session.broken(asked, error)
        session.failed("put", outcome, f"{session.data.keys[number]} v{version}: {error!r}")
        return
    if answer.status != 200:
        what = f"{session.data.keys[number]} v{version}: {answer.status} {answer.text!r}"
        session.failed("put", session.refused(asked, answer) or "error", what)
    elif answer.fields.get("etag") != session.data.tag(number, version):
        what = f"{session.data.keys[number]} v{version}: ETag {answer.fields.get('etag')}"
        session.tally.failed("put", "wrong", what)
    else:
        session.versions.acknowledge(number, version)
        session.tally.answered("put")
        if body and session.random.random() < _LAST_FIRST:
            # The proxy knows nothing of the new version, so it must find out where these bytes begin.
            reads.last_of(session, number)
        whole = session.asked("get", number, (0, len(body)), 200)
        session.exchange(whole, session.request("GET", number))


def purge(session: Session, control: tuple[str, int]) -> None:
    """Drop all objects of a random size from the cache."""
    size = session.random.choice([size for size in session.data.ranges if size])
    connection = HTTPConnection(*control, timeout=60)
    try:
        body = msgspec.json.encode({"uri": f"s3://{BUCKET}/{size}/"})
        connection.request("POST", "/v1/purge", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()

        def get(path: str) -> bytes:
            connection.request("GET", path)
            return connection.getresponse().read()

        status = end_of_purge(answer.status, text, get)
    except OSError as error:
        session.tally.failed("purge", "error", repr(error))
    else:
        if status == 200:
            session.tally.answered("purge")
        else:
            session.tally.failed("purge", "error", f"{status} {text[:200]!r}")
    finally:
        connection.close()
