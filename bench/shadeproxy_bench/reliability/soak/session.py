"""The requests of one thread to the proxy: the answers that it expects, and the judgement on each answer."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shadeproxy.core.sigv4 import EMPTY_SHA256
from shadeproxy_bench.reliability.kit.bodies import BUCKET, DataSet
from shadeproxy_bench.reliability.kit.link import FULL_SPEED, Answer, Cut, Link, Pace
from shadeproxy_bench.reliability.kit.tally import FAULTS, Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.requests import signature_of

_HOT_SHARE = 0.06
_HOT_READS = 0.5
_SHIFT_S = 45.0
"""Seconds after which other objects become hot. So the pages that are worth keeping change all the time."""
Span = tuple[int, int]


class Asked(NamedTuple):
    """The answer that is expected to a request. ``span``: the bytes that must come, half-open; None: no body
    is expected or compared. ``before``: the version of the object that was acknowledged when the request was
    made.
    """

    kind: str
    number: int
    span: Span | None
    before: int
    status: int


def _amz(fields: Sequence[str]) -> list[tuple[str, str]]:
    """Return those of ``fields`` whose names begin with x-amz-. These must be signed."""
    pairs = (field.partition(": ") for field in fields)
    return [(name, value) for name, _, value in pairs if name.startswith("x-amz-")]


class Wrong(Exception):
    """The bytes, the version or a field of an answer are wrong."""


@dataclass
class Session:
    """Sends the requests of one thread, and judges the answers. ``random``: random numbers of this thread."""

    address: tuple[str, int]
    data: DataSet
    versions: Versions
    tally: Tally
    random: random.Random
    link: Link

    def pick(self, *sizes: int) -> int:
        """Choose an object that has one of ``sizes``. With probability one half it is an object that is hot
        now.
        """
        numbers = self.data.ranges[self.random.choice(sizes)]
        if self.random.random() < _HOT_READS:
            hot = max(1, round(len(numbers) * _HOT_SHARE))
            first = int(time.time() / _SHIFT_S) * hot
            return numbers[(first + self.random.randrange(hot)) % len(numbers)]
        return self.random.choice(numbers)

    def request(self, method: str, number: int, *fields: str, payload_hash: str = EMPTY_SHA256) -> bytes:
        """Return the head of a request, signed with probability one half."""
        path, host = f"/{BUCKET}/{self.data.keys[number]}", f"{self.address[0]}:{self.address[1]}"
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields]
        if self.random.random() < 0.5:
            signed = signature_of(method, path, host, fields=_amz(fields), payload_hash=payload_hash)
            lines += [f"{name}: {value}" for name, value in signed]
        return "\r\n".join([*lines, "", ""]).encode()

    def asked(self, kind: str, number: int, span: Span | None, status: int) -> Asked:
        return Asked(kind, number, span, self.versions.acknowledged(number), status)

    def exchange(self, asked: Asked, request: bytes, *, pace: Pace = FULL_SPEED) -> None:
        """Send one request, receive its answer, and judge and count it."""
        self.pipeline([(asked, request)], pace=pace)

    def pipeline(self, exchanges: list[tuple[Asked, bytes]], *, pace: Pace = FULL_SPEED) -> None:
        """Send all requests at once. Then receive the answers in order, and judge and count each."""
        waiting = [asked for asked, _ in exchanges]
        try:
            self.link.send(b"".join(request for _, request in exchanges))
            while waiting:
                asked = waiting[0]
                answer = self.link.receive(without_body=asked.kind == "head", pace=pace)
                self._judge(asked, answer)
                waiting.pop(0)
        except (Cut, OSError) as error:
            self.link.close()
            asked = waiting[0]
            self.failed(asked.kind, self.broken(asked, error), f"{self._name(asked)}: {error!r}")

    def broken(self, asked: Asked, error: Cut | OSError) -> str:  # noqa: ARG002 (subclasses look at it)
        """Return the outcome that is counted for a request without a complete answer."""
        beside = asked.kind != "put" and self.versions.started(asked.number) != asked.before
        return "cut beside a write" if beside else "error"

    def refused(self, asked: Asked, answer: Answer) -> str | None:
        """Return the outcome of an answer that refuses the request for now. Return None for any other answer,
        which is then judged.
        """
        if answer.status != 503:
            return None
        slow = "<Code>SlowDown</Code>" in answer.text
        beside = asked.kind != "put" and self.versions.started(asked.number) != asked.before
        return "slow down" if slow else "cut beside a write" if beside else "error"

    def failed(self, kind: str, outcome: str, what: str) -> None:
        """Count a request that failed. ``what`` is kept if the outcome is a fault."""
        self.tally.failed(kind, outcome, what if outcome in FAULTS else "")

    def _judge(self, asked: Asked, answer: Answer) -> None:
        source = answer.fields.get("x-shade-cache", "none")
        outcome = self.refused(asked, answer)
        if outcome is not None:
            self.failed(asked.kind, outcome, f"{self._name(asked)}: {answer.status} {answer.text!r}")
            return
        try:
            self._compare(asked, answer)
        except Wrong as wrong:
            what = f"{self._name(asked)}: {wrong}; x-shade-cache: {source}"
            self.tally.failed(asked.kind, "wrong", what)
        else:
            self.tally.answered(asked.kind, answer.length, source)

    def _compare(self, asked: Asked, answer: Answer) -> None:
        """Compare an answer with the expected one. Raises Wrong."""
        after = self.versions.started(asked.number)
        if answer.status == 412 and asked.kind == "if-match" and after != asked.before:
            return
        if answer.status != asked.status:
            raise Wrong(f"status {answer.status}, not {asked.status}: {answer.text!r}")
        if answer.status in {404, 412, 416}:
            return
        tag = answer.fields.get("etag", "none")
        version = self.data.version_of(asked.number, tag)
        if version is None or not asked.before <= version <= after:
            raise Wrong(f"ETag {tag} is not of a version {asked.before} .. {after}")
        size_bytes = self.data.sizes[asked.number]
        if asked.kind == "head" and answer.fields.get("content-length") != str(size_bytes):
            raise Wrong(f"Content-Length {answer.fields.get('content-length')}, not {size_bytes}")
        if asked.span is None:
            return
        start, stop = asked.span
        span = f"bytes {start}-{stop - 1}/{size_bytes}"
        if answer.status == 206 and answer.fields.get("content-range") != span:
            raise Wrong(f"Content-Range {answer.fields.get('content-range')}, not {span}")
        if answer.length != stop - start:
            raise Wrong(f"{answer.length} bytes, not {stop - start}")
        expected = self.data.body(asked.number, version)[start:stop]
        if not answer.is_body(expected):
            raise Wrong(f"wrong bytes for version {version}: {answer.difference(expected)}")

    def _name(self, asked: Asked) -> str:
        return f"{self.data.keys[asked.number]} {asked.span or ''}"
