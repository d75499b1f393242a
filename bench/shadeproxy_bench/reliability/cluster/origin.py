"""An origin in memory that is slow now and then, and records the order in which it carries out writes.

A write whose request has arrived completely is carried out even if its sender is gone. Some writes are
carried out seconds later, like late writes of proxies that were killed or cut off.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs, unquote

from shadeproxy_bench.reliability.cluster.bodies import BUCKET, number_of, seq_of_body, tag_of
from shadeproxy_bench.reliability.cluster.history import ABSENT, History
from shadeproxy_bench.reliability.kit.exchanges import Exchange, StreamingOrigin, refuse, say
from shadeproxy_bench.reliability.kit.origin import (
    created_of,
    described,
    document,
    head_of,
    list_buckets_of,
    result_of,
    span_of,
)

MOST_LATE_S: Final = 2.0
"""The longest time, in seconds, from the arrival of a write until it is carried out."""
_KEYS = re.compile(r"<Key>([^<]+)</Key>")
_OK, _NO_CONTENT = "200 OK", "204 No Content"


class MemoryOrigin(StreamingOrigin):
    """Keeps all objects in memory. ``histories``: the history of each object, at the index of the object's
    number. By it the reads of the object are judged.
    """

    def __init__(self, count: int, choices: random.Random) -> None:
        self.histories = [History() for _ in range(count)]
        self.damaged: list[str] = []
        """Descriptions of writes whose body does not belong to the object that they name."""
        self.asked: Counter[str] = Counter()
        """Number of requests by method."""
        self.idle = asyncio.Event()
        """Set while every write that has arrived has also been carried out."""
        self.idle.set()
        self._writing = 0
        self._bodies: dict[str, bytes] = {}
        self._tags: dict[str, str] = {}
        self._parts: dict[str, dict[int, bytes]] = {}
        self._uploads = 0
        self._choices = choices

    async def answer(self, asked: Exchange) -> None:
        self.asked[asked.method] += 1
        path, _, query = asked.target.partition("?")
        bucket, _, key = unquote(path.removeprefix("/")).partition("/")
        fields = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        body = await asked.reader.readexactly(asked.length)
        if not bucket:
            say(asked.out, _OK, list_buckets_of(BUCKET))
        elif bucket != BUCKET:
            refuse(asked.out, "404 Not Found", "NoSuchBucket")
        elif not key and "delete" in fields:
            await self._remove_many(asked.out, body.decode())
        elif not key:
            say(asked.out, _OK, b"" if asked.method == "HEAD" else document("<ListBucketResult/>"))
        elif asked.method in {"GET", "HEAD"}:
            await self._send(asked, key)
        else:
            await self._write(asked, key, fields, body)

    # ------------------------------------------------------------------ reads

    async def _send(self, asked: Exchange, key: str) -> None:
        out, without_body = asked.out, asked.method == "HEAD"
        await self._pause(0.1)
        body, tag = self._bodies.get(key), self._tags.get(key, "")
        await self._pause(0.1)
        matching, known = asked.fields.get("if-match", tag), asked.fields.get("if-none-match", "")
        if body is None:
            error = "" if without_body else "<Error><Code>NoSuchKey</Code></Error>"
            _say_of(out, "404 Not Found", document(error) if error else b"")
        elif matching not in {tag, "*"}:
            error = "" if without_body else "<Error><Code>PreconditionFailed</Code></Error>"
            _say_of(out, "412 Precondition Failed", document(error) if error else b"")
        elif known == tag:
            out.write(head_of("304 Not Modified", 0, {"ETag": tag}))
        else:
            span = asked.fields.get("range")
            start, stop = span_of(span, len(body))
            status, fields = described(start, stop, len(body), tag, ranged=span is not None)
            out.write(head_of(status, stop - start, fields))
            if not without_body:
                middle = start + (stop - start) // 2
                out.write(body[start:middle])
                await self._pause(0.03)
                out.write(body[middle:stop])

    # ------------------------------------------------------------------ writes

    async def _write(self, asked: Exchange, key: str, fields: dict[str, str], body: bytes) -> None:
        out, upload = asked.out, fields.get("uploadId", "")
        source = asked.fields.get("x-amz-copy-source")
        if "uploads" in fields:
            self._uploads += 1
            self._parts[name := f"upload{self._uploads}"] = {}
            say(out, _OK, created_of(name))
        elif upload and upload not in self._parts:
            refuse(out, "404 Not Found", "NoSuchUpload")
        elif asked.method == "PUT" and upload:
            await self._pause(0.1)
            number = int(fields["partNumber"])
            self._parts[upload][number] = body
            say(out, _OK, more={"ETag": f'"{upload}.{number}"'})
        elif asked.method == "DELETE" and upload:
            del self._parts[upload]
            say(out, _NO_CONTENT)
        elif asked.method == "DELETE":
            with self._arrived():
                await self._be_late()
                self._remove(key)
            await self._pause(0.1)
            say(out, _NO_CONTENT)
        elif asked.method == "POST":
            parts = self._parts.pop(upload)
            tag = await self._store(key, b"".join(parts[one] for one in sorted(parts)))
            say(out, _OK, result_of("CompleteMultipartUpload", tag))
        elif source is None:
            say(out, _OK, more={"ETag": await self._store(key, body)})
        else:
            await self._copy(out, key, unquote(source).removeprefix("/").removeprefix(f"{BUCKET}/"))

    async def _store(self, key: str, body: bytes) -> str:
        """Carry a write out now or a little later. Return the ETag."""
        with self._arrived():
            await self._be_late()
            self._put(key, body)
            tag = self._tags[key]
        await self._pause(0.1)
        return tag

    async def _copy(self, out: asyncio.StreamWriter, key: str, source: str) -> None:
        body = self._bodies.get(source)
        if body is None:
            refuse(out, "404 Not Found", "NoSuchKey")
        else:
            say(out, _OK, result_of("CopyObject", await self._store(key, body)))

    async def _remove_many(self, out: asyncio.StreamWriter, listed: str) -> None:
        keys: Sequence[str] = _KEYS.findall(listed)
        with self._arrived():
            await self._be_late()
            for key in keys:
                self._remove(key)
        await self._pause(0.1)
        removed = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        say(
            out, _OK, document(f"<DeleteResult>{removed}</DeleteResult>"), {"Content-Type": "application/xml"}
        )

    def _put(self, key: str, body: bytes) -> None:
        number = number_of(key)
        self._bodies[key] = body
        if number is None:
            self._tags[key] = f'"{len(body)}.stage"'
            return
        seq = seq_of_body(number, body)
        if seq is None:
            self.damaged.append(f"{key}: {body[:40]!r}, {len(body)} bytes")
            self._tags[key] = f'"{len(self.damaged)}.damaged"'
        else:
            self._tags[key] = tag_of(number, seq)
            self.histories[number].carry_out(seq, time.monotonic())

    def _remove(self, key: str) -> None:
        number = number_of(key)
        self._bodies.pop(key, None)
        self._tags.pop(key, None)
        if number is not None:
            self.histories[number].carry_out(ABSENT, time.monotonic())

    # ------------------------------------------------------------------ time

    @contextmanager
    def _arrived(self) -> Iterator[None]:
        self._writing += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._writing -= 1
            if not self._writing:
                self.idle.set()

    async def _pause(self, share: float) -> None:
        """Wait for up to 0.3 s, with probability ``share``."""
        if self._choices.random() < share:
            await asyncio.sleep(self._choices.random() * 0.3)

    async def _be_late(self) -> None:
        drawn = self._choices.random()
        if drawn < 0.03:
            await asyncio.sleep(self._choices.random() * MOST_LATE_S)
        elif drawn < 0.2:
            await asyncio.sleep(self._choices.random() * 0.4)


def _say_of(out: asyncio.StreamWriter, status: str, text: bytes) -> None:
    say(out, status, text, {"Content-Type": "application/xml"})
