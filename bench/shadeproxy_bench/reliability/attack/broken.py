"""The attack of a broken or hostile origin, on every kind of operation.

Oracle: within the time limit the client gets a right answer, an S3 error document, or an answer that visibly
breaks off. An abort is a violation where the origin gave no answer at all, because an error could be sent.
Once the origin is right again, every read of the object is right: nothing wrong was cached.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from shadeproxy_bench.reliability.attack.origin import BUCKET, Asked, content, listing_of
from shadeproxy_bench.reliability.attack.scripts import BROKEN, Broken, Says
from shadeproxy_bench.reliability.attack.side import Attack, Side
from shadeproxy_bench.reliability.attack.wire import Ending, Received, Wire
from shadeproxy_bench.reliability.kit.answers import Answer, Unreadable, is_whole, next_answer

_AT_ONCE = 12
_LIMIT_S, _WAIT_S = 16.0, 40.0
"""``_LIMIT_S``: more than any limit of the proxy, with the settings of run.py."""
_ALONE_S, _BEHIND_S = 25.0, 0.15
_TRIES = 12
_SMALL_BYTES = 1_000_000
"""An upload of less may be in the kernel's buffers as a whole when its answer comes."""


class Operation(NamedTuple):
    """A kind of request. ``path`` and ``query`` may contain "{token}"."""

    name: str
    method: str
    path: str
    query: str = ""
    fields: str = ""
    body: bytes = b""

    @property
    def may_work_long(self) -> bool:
        """True if the origin may send a byte now and then for as long as it likes (docs/semantics.md)."""
        return self.name == "complete"

    @property
    def is_write(self) -> bool:
        return self.method not in {"GET", "HEAD"}


_FIRST, _STOP = 100, 40_000
_RANGE = f"Range: bytes={_FIRST}-{_STOP - 1}\r\n"
_PARTS = (
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>a</ETag></Part>"
    b"</CompleteMultipartUpload>"
)
OPERATIONS = (
    Operation("read", "GET", "/{token}-0.50000"),
    Operation("long read", "GET", "/{token}-0.4300000"),
    Operation("range", "GET", "/{token}-0.50000", fields=_RANGE),
    Operation("stored part", "GET", "/{token}-0.4300000", fields=_RANGE),
    Operation("head", "HEAD", "/{token}-0.50000"),
    Operation("forwarded read", "GET", "/{token}-0.50000", "versionId=1"),
    Operation("list", "GET", "", "list-type=2&prefix={token}-"),
    Operation("upload", "PUT", "/{token}-0", body=b"u" * 20_000),
    Operation("long upload", "PUT", "/{token}-0", body=b"l" * 6_000_000),
    Operation("create", "POST", "/{token}-0", "uploads"),
    Operation("part", "PUT", "/{token}-0", "partNumber=1&uploadId=u1", body=b"p" * 20_000),
    Operation("complete", "POST", "/{token}-0", "uploadId=u1", body=_PARTS),
    Operation("delete", "DELETE", "/{token}-0"),
    Operation("tags", "PUT", "/{token}-0", "tagging", body=b"<Tagging></Tagging>"),
)


class BrokenOrigin(Attack):
    """All scripts with one proxy."""

    name = "broken origin"

    def __init__(self, side: Side, seed: int, pause: asyncio.Lock, only: str = "") -> None:
        """``pause``: stops all other requests to the origin."""
        super().__init__(side)
        self._pause = pause
        self._todo = [
            (operation, broken)
            for operation in OPERATIONS
            for broken in BROKEN
            if (broken.writes if operation.is_write else broken.reads)
            and not (operation.may_work_long and "slow" in broken.name)
            # A listing is passed on with the status that the origin sends.
            and not (operation.name == "list" and broken.name.startswith("206"))
            and (not only or only in broken.name or only in operation.name)
        ]
        Random(f"{seed}/broken/{side.name}").shuffle(self._todo)
        self._alone = [one for one in self._todo if one[1].alone]
        self._todo = [one for one in self._todo if not one[1].alone]

    async def run(self, until_s: float) -> None:
        """Play all scripts, or as many as are begun when the loop's clock says ``until_s``."""
        await asyncio.gather(*(self._client(self._todo, until_s) for _ in range(_AT_ONCE)))
        async with self._pause:
            await self._client(self._alone, max(until_s, asyncio.get_running_loop().time() + _ALONE_S))
        await self.judge_alarms()

    @property
    def left(self) -> int:
        """Number of scripts that there was no time for."""
        return len(self._todo) + len(self._alone)

    async def _client(self, todo: list[tuple[Operation, Broken]], until_s: float) -> None:
        while todo and asyncio.get_running_loop().time() < until_s:
            operation, broken = todo.pop()
            await self.guard(f"{operation.name}: {broken.name}", self._one(operation, broken))

    async def _one(self, operation: Operation, broken: Broken) -> None:
        side, token = self.side, self.side.new_token("o")
        case = f"{operation.name}: {broken.name}"
        path = f"/{BUCKET}{operation.path.format(token=token)}"
        query = operation.query.format(token=token)
        request = _request(side, operation, path, query)
        self.remember(token, case, [request])
        side.origin.set_script(token, broken.script)
        began_s = time.monotonic()
        received = await ask(side, request, operation.method)
        took_s = time.monotonic() - began_s
        side.origin.set_script(token, None)
        self.count(operation.name)
        if broken.alone or operation.is_write:
            await _until_taken(side.origin.asked[token], operation)
        if broken.alone:
            await asyncio.sleep(_BEHIND_S)
        asked = side.origin.asked.pop(token, [])
        detail = f"script: {broken.script!r}"[:3000]

        def fail(what: str, data: bytes = received.data) -> None:
            self.fail(what, case, [request], data, detail)

        if took_s > _LIMIT_S:
            fail(f"no end after {took_s:.0f} s")
        self._judge(operation, broken, received, asked, path, query, fail)
        await self._healed(path, fail, operation.fields)
        if broken.alone:
            await self._healed(f"/{BUCKET}/{side.new_token('o')}-0.100", fail)
        side.origin.asked.pop(token, None)

    def _judge(  # noqa: PLR0917 (all that a verdict depends on)
        self,
        operation: Operation,
        broken: Broken,
        received: Received,
        asked: list[Asked],
        path: str,
        query: str,
        fail: Callable[[str], None],
    ) -> None:
        try:
            answer, rest = next_answer(received.data, operation.method.encode())
        except Unreadable as error:
            fail(f"bytes that are no answer: {error}")
            return
        if rest:
            fail(f"bytes behind the answer: {rest[:100]!r}")
        if not answer.whole:
            if received.ending is Ending.OPEN:
                fail("the answer is not complete, and the connection is open")
            elif broken.says is Says.NOTHING and not answer.status:
                fail(f"no answer, where an error could be sent; the connection is {received.ending}")
        elif answer.status < 300:
            if operation.is_write:
                took = any(one.is_whole and one.body == operation.body for one in asked)
                if not took and len(operation.body) > _SMALL_BYTES:
                    fail(f"answered {answer.status}, and the origin did not take the whole body")
                if broken.says is Says.NOTHING and not broken.script.times:
                    fail(f"answered {answer.status}, and the origin gave no answer")
            else:
                self._judge_read(operation, broken, answer, path, query, fail)

    def _judge_read(  # noqa: PLR0917 (as above)
        self,
        operation: Operation,
        broken: Broken,
        answer: Answer,
        path: str,
        query: str,
        fail: Callable[[str], None],
    ) -> None:
        truth = listing_of(query) if operation.name == "list" else content(path) or b""
        if operation.fields:
            truth = truth[_FIRST:_STOP]
        if operation.method == "HEAD":
            if answer.fields.get(b"content-length") not in {None, str(len(truth)).encode()} and (
                broken.says is Says.WHOLE
            ):
                fail(f"the length {answer.fields.get(b'content-length')!r}")
        elif answer.body != truth and not (
            broken.says is Says.SHORT and answer.body and truth.startswith(answer.body)
        ):
            size = len(answer.body or b"")
            fail(f"answered {answer.status} with {size} bytes, not the {len(truth)} right ones")

    async def _healed(self, path: str, fail: Callable[[str], None], fields: str = "") -> None:
        """Read the object twice and its metadata once, now that the origin is right. ``fields``: the range
        that was read; it is read twice before, because it may be stored alone.
        """
        if path == f"/{BUCKET}":
            return
        reads = [("GET", ""), ("GET", ""), ("HEAD", "")]
        for method, more in [("GET", fields)] * 2 + reads if fields else reads:
            first = f"{method} {path} HTTP/1.1\r\nHost: {self.side.address.authority}\r\n"
            request, found = f"{first}{more}\r\n".encode(), ""
            for _ in range(_TRIES):
                received = await ask(self.side, request, method)
                found, may_pass = self._is_right(method, path, received, is_range=bool(more))
                if not (found and may_pass):
                    break
                await asyncio.sleep(1.0)
            if found:
                fail(f"afterwards, {method} {more.strip()}: {found}; the origin is right")

    def _is_right(self, method: str, path: str, received: Received, *, is_range: bool) -> tuple[str, bool]:
        """Return the fault of an answer; "" if it is right. Also return whether the fault may pass, because a
        read of the broken answer may still be under way.
        """
        try:
            answer, _ = next_answer(received.data, method.encode())
        except Unreadable as error:
            return str(error), False
        size, truth = len(answer.body or b""), self.side.origin.body_of(path)
        if truth is not None and is_range:
            truth = truth[_FIRST:_STOP]
        found = f"{answer.status}, {size} bytes, {received.ending}"
        if not answer.whole or answer.status == 503:
            return found, True
        right = answer.status == (404 if truth is None else 206 if is_range else 200)
        if right and truth is not None:
            length = answer.fields.get(b"content-length")
            right = answer.body == truth if method == "GET" else length == str(len(truth)).encode()
        # The origin may still carry out an upload that the proxy has given up.
        return "" if right else found, False


async def _until_taken(asked: list[Asked], operation: Operation) -> None:
    """Wait a little until the origin has taken the rest of an upload that the proxy has sent."""
    for _ in range(40):
        if any(one.is_whole and one.body == operation.body for one in asked):
            return
        await asyncio.sleep(0.05)


def _request(side: Side, operation: Operation, path: str, query: str) -> bytes:
    target = f"{path}?{query}" if query else path
    length = f"Content-Length: {len(operation.body)}\r\n" if operation.is_write else ""
    first = f"{operation.method} {target} HTTP/1.1\r\nHost: {side.address.authority}\r\n"
    return f"{first}{operation.fields}{length}\r\n".encode() + operation.body


async def ask(side: Side, request: bytes, method: str) -> Received:
    """Send a request over a new connection, and return the answer."""
    wire = await Wire.open(side.address)
    try:
        sending = asyncio.create_task(wire.send_all([request], 0.0))
        received = await wire.read_until(
            lambda data: is_whole(data, method.encode()), silent_s=_WAIT_S, limit_s=_WAIT_S
        )
        await sending
        return received
    finally:
        wire.close()
