"""An S3 server with troubles, drawn from a seed: answers that break off, come late, or have a
newer version.
"""

import random
import re
from collections import Counter
from hashlib import blake2b

from tests.support.s3.cases import crc32
from tests.support.s3.scripted import CUT, PAGE, PAUSE, ScriptedServer, Steps

SIZES = (1, 3000, 100_000, 300_000, PAGE - 1, PAGE, PAGE + 5000)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
_CHANGED = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
_BEYOND = b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"


def body_of(path: str, tag: str) -> bytes:
    """Return the body of a version. No two versions, and no two objects, have the same bytes at one place."""
    rng = random.Random(path)
    size = SIZES[rng.randrange(len(SIZES))]
    period = b"".join(blake2b(f"{path} {tag} {n}".encode()).digest() for n in range(17))
    return (period * (size // len(period) + 1))[:size]


class RandomOrigin(ScriptedServer):
    """An S3 server on which every object exists. ``troubled``: the probability that an answer has
    a trouble.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)
        self.troubled = 0.0
        self.gets: Counter[str] = Counter()
        """The number of GETs of each object and page."""
        self.troubles: Counter[str] = Counter()
        """The number of answers with a trouble, for each object."""
        self.versions: Counter[str] = Counter()

    def tag(self, path: str) -> str:
        """Return the ETag of the object's current version."""
        return f'"v{self.versions[path]}"'

    def _answer(self, method: str, path: str, fields: dict[str, str]) -> Steps:
        if path in {"/", "/b/warm"}:
            return super()._answer(method, path, fields)
        self.asked.append((method, path, fields.get("range", ""), fields.get("if-match", "")))
        if self._draws(0.2) and method == "GET":
            self.troubles[path] += 1
            self.versions[path] += 1
        tag = self.tag(path)
        body = body_of(path, tag)
        found = _RANGE.fullmatch(fields.get("range", ""))
        start = int(found[1]) if found else 0
        stop = min(len(body), int(found[2] or len(body)) + 1) if found else len(body)
        if method == "GET":
            self.gets[f"{path} {start // PAGE}"] += 1
        if fields.get("if-match", tag) != tag:
            self.troubles[path] += 1
            return [_CHANGED]
        if start >= len(body):
            return [_BEYOND]
        if self._draws(0.2):
            self.troubles[path] += 1
            return [_BUSY] if self.rng.random() < 0.7 else [CUT]
        return self._body(method, path, tag, body, (start, stop) if found else None)

    def _body(self, method: str, path: str, tag: str, body: bytes, span: tuple[int, int] | None) -> Steps:
        start, stop = span or (0, len(body))
        lines = [b"HTTP/1.1 206 Partial Content" if span else b"HTTP/1.1 200 OK"]
        if span:
            lines.append(b"Content-Range: bytes %d-%d/%d" % (start, stop - 1, len(body)))
        elif random.Random(f"sum of {path}").random() < 0.3:
            lines.append(crc32(body))
        lines += [b"ETag: " + tag.encode(), b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"]
        lines.append(b"Content-Length: %d" % (stop - start))
        whole = b"\r\n".join([*lines, b"", b""]) + (body[start:stop] if method == "GET" else b"")
        pieces = self.rng.choice((1, 1, 2, 3, 8))
        places = sorted(self.rng.randrange(len(whole)) for _ in range(pieces - 1))
        steps: list[bytes | str] = []
        for first, last in zip([0, *places], [*places, len(whole)], strict=True):
            steps += [whole[first:last]] + [PAUSE] * self.rng.choice((1, 1, 2, 5))
        if self._draws(0.3):
            self.troubles[path] += 1
            return [*steps[: self.rng.randrange(len(steps))], CUT]
        return steps

    def _draws(self, share: float) -> bool:
        return self.rng.random() < share * self.troubled
