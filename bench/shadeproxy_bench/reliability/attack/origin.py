"""``ScriptedOrigin``: a raw-socket origin that records each request byte by byte, and answers as its scripts
say.

Keys name their owner: ``TOKEN-REST``, where TOKEN is that of one attack. Without a script the origin is
right: it keeps uploads, and an object that was never uploaded has the bytes of ``content``, if its key ends
with ".SIZE". The requests are the proxy's own, so one that is not strict is an alarm. So is a request whose
target holds SMUGGLED, or whose head holds STRAY: no sender means these to be carried out or passed on.
"""

import asyncio
import hashlib
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from shadeproxy_bench.reliability.kit.origin import (
    Fields,
    answer_of,
    created_of,
    document,
    error_of,
    list_buckets_of,
    object_of,
    result_of,
)

BUCKET = "attack"
SMUGGLED, STRAY = b"smuggled", b"stray"
_TOKEN = re.compile(r"[/=]([a-z]\d{6})-")
_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([^\r\n\0]*)")
_SIZED = re.compile(r"\.(\d+)$")
_BUFFER_BYTES = 1 << 16
_REST_S = 30.0


class Act(Enum):
    """A step of a script besides bytes and pauses. ``TAKE``: read the body of the request."""

    TAKE = "take the body"
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"


class Repeat(NamedTuple):
    """A step that sends ``data`` ``times`` times, with a pause after each."""

    data: bytes
    times: int
    pause_s: float = 0.0


Part = Callable[[bytes, bytes], bytes]
"""A step that sends bytes made from head and body of the right answer."""
Step = bytes | float | Act | Repeat | Part


class Script(NamedTuple):
    """The answer to a request, step by step: bytes are sent, numbers are pauses in seconds. After the last
    step the connection is ready for the next request. ``times``: how often it is played; 0: always.
    """

    steps: tuple[Step, ...]
    times: int = 0


@dataclass(slots=True)
class Asked:
    """A request that the origin got. ``head``: as it came. ``is_whole``: True if its body is complete."""

    head: bytes
    method: str
    target: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    is_whole: bool = False

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0], errors="surrogateescape")

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def values(self, name: str) -> list[str]:
        """Return the values of the fields with the lower-case name ``name``."""
        return [value for found, value in self.fields if found == name]


class Alarm(NamedTuple):
    """A request that must never reach an origin."""

    what: str
    token: str
    head: bytes


@lru_cache(maxsize=32)
def content(path: str) -> bytes | None:
    """Return the bytes of the object at ``path`` that was never uploaded; None if there is none."""
    found = _SIZED.search(path)
    return hashlib.shake_256(path.encode(errors="surrogateescape")).digest(int(found[1])) if found else None


def tag_of(body: bytes) -> str:
    """Return an ETag, which has the form of that of an object that was uploaded in one part."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}-1"'


class _Malformed(Exception):
    """Raised if a request of the proxy breaks HTTP/1.1."""


class Gate:
    """Holds requests back until ``limit_s`` after the first one. ``most``: how many waited at once."""

    def __init__(self, limit_s: float) -> None:
        self.most = 0
        self._limit_s = limit_s
        self._opened: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Wait until the gate opens."""
        if self._opened is None:
            self._opened = asyncio.create_task(asyncio.sleep(self._limit_s))
        if not self._opened.done():
            self.most += 1
            await asyncio.wait({self._opened})


class ScriptedOrigin:
    """All connections of the origin. ``scripts`` and ``asked`` (the requests): by token."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.asked: defaultdict[str, list[Asked]] = defaultdict(list)
        self.alarms: list[Alarm] = []
        self.stored: dict[str, bytes | None] = {}
        self.gates: dict[str, Gate] = {}
        self.port = 0
        self._played: defaultdict[str, int] = defaultdict(int)
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A small buffer, so that an upload that is not read stays with its sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=1 << 20, backlog=4096)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def gate(self, token: str, limit_s: float) -> Gate:
        """Hold back the requests for keys of ``token``, until ``limit_s`` after the first one."""
        self.gates[token] = gate = Gate(limit_s)
        return gate

    def set_script(self, token: str, script: Script | None) -> None:
        """Answer requests for keys of ``token`` by ``script``; None: rightly."""
        self._played.pop(token, None)
        if script is None:
            self.scripts.pop(token, None)
        else:
            self.scripts[token] = script

    # ------------------------------------------------------------------ connections

    async def _serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        head = b""
        try:
            while True:
                head = b""
                head = await reader.readuntil(b"\r\n\r\n")
                asked = parse(head)
                if not await self._answer(asked, reader, out):
                    return
                await out.drain()
        except _Malformed as error:
            self._alarm(str(error), head)
        except asyncio.IncompleteReadError as error:
            if not head and error.partial:
                self._alarm("bytes of the proxy that are no head", error.partial)
        except (ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            out.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> bool:
        """Answer a request. Return False if the connection ends."""
        token = self._note(asked)
        if token in self.gates:
            await self.gates[token].enter()
        script = self.scripts.get(token)
        if script is not None and (not script.times or self._played[token] < script.times):
            self._played[token] += 1
            return await self._play(script.steps, asked, reader, out)
        if asked.values("expect"):
            out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await take(asked, reader)
        out.writelines(self.answer(asked))
        return True

    async def _play(
        self, steps: Sequence[Step], asked: Asked, reader: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> bool:
        for step in steps:
            if step is Act.TAKE:
                await take(asked, reader)
            elif step is Act.HANG:
                await _drain(reader)
                return False
            elif isinstance(step, Act):
                _end(out, reset=step is Act.RESET)
                return False
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Repeat):
                for _ in range(step.times):
                    await _send(out, step.data)
                    await asyncio.sleep(step.pause_s)
            else:
                await _send(out, step if isinstance(step, bytes) else step(*self._right(asked)))
        if not asked.is_whole:
            await take(asked, reader)
        return True

    def _right(self, asked: Asked) -> tuple[bytes, bytes]:
        """Return head and body of the right answer. An upload is carried out only if its body is complete."""
        is_write = asked.method not in {"GET", "HEAD"}
        right = answer_of("200 OK", b"", {"ETag": tag_of(b"")}) if is_write and not asked.is_whole else None
        head, *body = self.answer(asked) if right is None else right
        return bytes(head), b"".join(body)

    def _note(self, asked: Asked) -> str:
        """Keep the request, and return its token; "" if it has none."""
        found = _TOKEN.search(unquote(asked.target, errors="surrogateescape"))
        token = found[1] if found else ""
        self.asked[token].append(asked)
        if SMUGGLED in asked.target.encode():
            self._alarm("a smuggled request was carried out", asked.head)
        elif STRAY in asked.head.lower():
            self._alarm("a field that belongs to no request was passed on", asked.head)
        return token

    def _alarm(self, what: str, head: bytes) -> None:
        token = _TOKEN.search(unquote(head.decode("latin-1")))
        self.alarms.append(Alarm(what, token[1] if token else "", head))

    # ------------------------------------------------------------------ right answers

    def answer(self, asked: Asked) -> list[bytes | memoryview]:
        """Return the right answer to a request whose body is complete, and carry the request out."""
        if asked.path.rstrip("/") in {"", f"/{BUCKET}"}:
            return _of_bucket(asked)
        if "uploads" in asked.query and asked.method == "POST":
            self._uploads[asked.path] = {}
            return answer_of("200 OK", created_of("u1"), _XML)
        if "uploadId=" in asked.query:
            return self._of_upload(asked)
        return self._of_object(asked)

    def _of_object(self, asked: Asked) -> list[bytes | memoryview]:
        method, path = asked.method, asked.path
        if method in {"GET", "HEAD"}:
            body = self.body_of(path)
            if body is None:
                return error_of("404 Not Found", "NoSuchKey", method)
            fields: Fields = {name: value for name, value in asked.fields if name in {"range", "if-match"}}
            return object_of(method, body, tag_of(body), fields)
        if method == "DELETE":
            if not asked.query:
                self.stored[path] = None
            return [b"HTTP/1.1 204 No Content\r\n\r\n"]
        if method == "PUT" and not asked.query:
            self.stored[path] = asked.body
        return answer_of("200 OK", b"", {"ETag": tag_of(asked.body)})

    def body_of(self, path: str) -> bytes | None:
        """Return the bytes of an object as they are now; None if there is none."""
        return self.stored[path] if path in self.stored else content(path)

    def _of_upload(self, asked: Asked) -> list[bytes | memoryview]:
        path = asked.path
        parts = self._uploads.setdefault(path, {})
        number = re.search(r"partNumber=(\d+)", asked.query)
        if asked.method == "PUT" and number:
            parts[int(number[1])] = asked.body
            return answer_of("200 OK", b"", {"ETag": tag_of(asked.body)})
        if asked.method == "POST":
            self.stored[path] = body = b"".join(parts[turn] for turn in sorted(parts))
            return answer_of("200 OK", result_of("CompleteMultipartUpload", tag_of(body)), _XML)
        return [b"HTTP/1.1 204 No Content\r\n\r\n"]


_XML: Fields = {"Content-Type": "application/xml"}


def _of_bucket(asked: Asked) -> list[bytes | memoryview]:
    if asked.path == "/":
        return answer_of("200 OK", list_buckets_of(BUCKET), _XML)
    if asked.method == "POST":
        return answer_of("200 OK", document("<DeleteResult></DeleteResult>"), _XML)
    listing = listing_of(asked.query) if asked.method == "GET" else b""
    return answer_of("200 OK", listing, _XML)


async def _send(out: asyncio.StreamWriter, data: bytes) -> None:
    out.write(data)
    await out.drain()


async def _drain(reader: asyncio.StreamReader) -> None:
    """Wait until the proxy has given up, whatever it still sends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REST_S):
            while await reader.read(1 << 16):
                pass


def _end(out: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            sock = out.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        out.transport.abort()
    else:
        out.close()


def listing_of(query: str) -> bytes:
    """Return a listing that repeats ``query``, so that no two listings are equal."""
    keys = "".join(f"<Contents><Key>{turn:04d}</Key><Size>1</Size></Contents>" for turn in range(100))
    escaped = query.replace("&", "&amp;")
    return document(
        f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escaped}</Prefix>{keys}</ListBucketResult>"
    )


def parse(head: bytes) -> Asked:
    """Return the request with the head ``head``. Raises _Malformed if it is not strict."""
    first, *lines = head[:-4].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise _Malformed("the proxy sent a request line that is not HTTP/1.1")
    fields = []
    for one in lines:
        found = _FIELD.fullmatch(one)
        if found is None:
            raise _Malformed(f"the proxy sent a field that is none: {one[:80]!r}")
        fields.append((found[1].decode().lower(), found[2].decode("utf-8", "surrogateescape")))
    names = [name for name, _ in fields]
    framing = names.count("content-length") + names.count("transfer-encoding")
    if framing > 1 or names.count("host") != 1:
        raise _Malformed("the proxy sent a request with two framings, or not one Host")
    return Asked(head, line[1].decode(), line[2].decode(), fields)


async def take(asked: Asked, reader: asyncio.StreamReader) -> None:
    """Read the body of a request. Raises IncompleteReadError, _Malformed."""
    pieces: list[bytes] = []
    if lengths := asked.values("content-length"):
        pieces.append(await reader.readexactly(int(lengths[0])))
    elif asked.values("transfer-encoding"):
        while size := await _line(reader, rb"([0-9A-Fa-f]+)\r\n"):
            pieces.append(await reader.readexactly(size))
            await _line(reader, rb"()\r\n")
        while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
            if STRAY in trailer.lower() or _FIELD.fullmatch(trailer[:-2]) is None:
                raise _Malformed(f"the proxy sent the trailing field {trailer!r}")
    asked.body, asked.is_whole = b"".join(pieces), True


async def _line(reader: asyncio.StreamReader, pattern: bytes) -> int:
    line = await reader.readuntil(b"\r\n")
    found = re.fullmatch(pattern, line)
    if found is None:
        raise _Malformed(f"the proxy sent the chunk line {line[:80]!r}")
    return int(found[1] or b"0", 16)
