"""A client of the control listener. It registers, scores and announces, and reads the state back after a
restart.

All scores of a post have the same value, which grows with each post. So a column with two different values
was written only in part, and a column with a smaller value than before has lost a post. The manifest of the
dataset ``turning`` always has the same keys, rotated by a number that grows.
"""

import http.client
import json
import struct
import threading
from random import Random
from typing import Any

import numpy as np

from shadeproxy_bench.reliability.crash.objects import BUCKET, FIXED_KEYS

_GONE = (OSError, http.client.HTTPException)
_COUNT = len(FIXED_KEYS)


class Scribe:
    """The client of the proxies of one home. It remembers the control state that it sent, and which part of
    this state is on disk.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0
        self._acknowledged = 0
        self._turn = 0
        self._durable = 0
        self._durable_turn = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.told = 0
        self.wrong: list[str] = []

    def start(self, seed: int) -> None:
        self._over.clear()
        # Scores that only the memory of the previous proxy held are gone. Scores that ``check`` has read back
        # since then count as durable.
        self._acknowledged = 0
        self._thread = threading.Thread(target=self._work, args=(Random(seed),), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def forget(self) -> None:
        """Expect nothing of the earlier state, because it was damaged on purpose."""
        self._durable = self._durable_turn = self._acknowledged = 0

    def check(self, *, clean: bool) -> None:
        """Read the state back after a start, and compare it. ``clean``: the previous proxy stopped in order,
        so nothing may be lost.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            scores = self._call(connection, "GET", "/v1/jobs/steady/scores")
            lines = self._call(connection, "GET", "/v1/datasets/turning?format=jsonl")
        except _GONE:
            return
        finally:
            connection.close()
        self._check_scores(scores, max(self._durable, self._acknowledged if clean else 0))
        self._check_manifest(lines)

    def _check_scores(self, raw: bytes | None, least: int) -> None:
        values = np.frombuffer(raw or b"", "<f4")
        known = values[~np.isnan(values)]
        found = int(known[0]) if len(known) else 0
        if len(known) and (len(known) != _COUNT or (known != known[0]).any() or found > self._number):
            self.wrong.append(f"scores were torn: {values.tolist()}")
        elif found < least:
            self.wrong.append(f"scores went back from {least} to {found}")
        self._durable = found

    def _check_manifest(self, raw: bytes | None) -> None:
        if raw is None:
            found = 0
        else:
            keys = [json.loads(line)["key"] for line in raw.splitlines()]
            turns = range(self._durable_turn, self._turn + 1)
            found = next((turn for turn in turns if keys == _turned(turn)), -1)
        if found < self._durable_turn:
            self.wrong.append(f"the manifest is none of {self._durable_turn} to {self._turn}: {raw!r:.200}")
        self._durable_turn = max(found, 0)

    # ------------------------------------------------------------------ calls

    def _work(self, rng: Random) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            self._register(connection, "steady", 0)
            while not self._over.is_set():
                if rng.random() < 0.2:
                    self._turn += 1
                    self._register(connection, "turning", self._turn)
                self._score(connection)
                self._announce(connection, rng)
                self.told += 1
        except _GONE:
            return
        finally:
            connection.close()

    def _register(self, connection: http.client.HTTPConnection, name: str, turn: int) -> None:
        lines = "".join(json.dumps({"bucket": BUCKET, "key": key}) + "\n" for key in _turned(turn))
        self._call(connection, "PUT", f"/v1/datasets/{name}", lines.encode(), "application/x-ndjson")
        if name == "steady":
            self._call(connection, "PUT", "/v1/jobs/steady", {"dataset": "steady"})

    def _score(self, connection: http.client.HTTPConnection) -> None:
        self._number += 1
        number = self._number
        body = struct.pack(f"<I{_COUNT}I{_COUNT}f", _COUNT, *range(_COUNT), *([number] * _COUNT))
        kind = "application/vnd.shadeproxy.scores"
        if self._call(connection, "POST", "/v1/jobs/steady/scores", body, kind) is not None:
            self._acknowledged = number

    def _announce(self, connection: http.client.HTTPConnection, rng: Random) -> None:
        ids = rng.sample(range(_COUNT), _COUNT)
        self._call(connection, "PUT", f"/v1/jobs/steady/epochs/{self._number}/order", {"ids": ids})
        self._call(
            connection,
            "POST",
            "/v1/jobs/steady/progress",
            {"epoch": self._number, "rank": 0, "position": rng.randrange(_COUNT)},
        )

    def _call(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        kind: str = "application/json",
    ) -> bytes | None:
        """Make a call. Return the answer's body; None for an unknown name or any other error."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, path, body=data, headers={"Content-Type": kind} if data else {})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 404:
            return None
        if answer.status >= 300:
            self.wrong.append(f"{method} {path}: {answer.status} {text!r:.300}")
            return None
        return text


def _turned(turn: int) -> list[str]:
    turn %= _COUNT
    return [*FIXED_KEYS[turn:], *FIXED_KEYS[:turn]]
