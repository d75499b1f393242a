"""Rounds of a proxy on failing media. The origin is a directory, in which the right answer can be looked up
at any time.
"""

import base64
import hashlib
import http.client
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from shadeproxy.config.toml import write_toml
from shadeproxy.demo.servers import Server, wait_until_ready
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.reliability.chaos.media.medium import (
    FailingDirectory,
    LoopMounted,
    Medium,
    loop_mounts_work,
)
from shadeproxy_bench.reliability.kit.processes import Phoenix
from shadeproxy_bench.reliability.kit.purges import end_of_purge
from shadeproxy_bench.server import workplace

OBJECTS = 40
_BUCKET = "data"
_READY_S, _ANSWER_S = 300.0, 60.0
_RAM, _DISK = "1 MiB", "16 MiB"
_WRITES = {"PUT": 6, "DELETE": 1, "copy": 1, "DeleteObjects": 1, "multipart": 1, "purge": 1}
_PART = slice(500, 900)
_PART_FIELDS = {"Range": f"bytes={_PART.start}-{_PART.stop - 1}"}
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]+)</UploadId>")
Line = Callable[[str], None]
_PROXY = (sys.executable, "-m", "shadeproxy_bench.reliability.chaos.media.proxy")


class MediaRun(msgspec.Struct):
    """The result of all rounds. ``rounds``: number of rounds by fault and by way of ending the proxy.
    ``outcomes``: number of writes by kind and status. ``answers``: number of reads by time and status.
    ``from_disk``: number of reads that the disk tier answered before its medium broke. ``stale``:
    descriptions of answers that differ from the origin. ``broken_promises``: writes that were answered 503
    although the origin carried them out.
    """

    seed: int
    rounds: Counter[str] = msgspec.field(default_factory=Counter)
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    from_disk: int = 0
    stale: list[str] = msgspec.field(default_factory=list)
    broken_promises: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Return whether no answer was stale and no promise was broken. The disk tier must have given some of
        the answers.
        """
        return not self.stale and not self.broken_promises and self.from_disk > 0


def judged(run: MediaRun) -> list[str]:
    """Return the result of ``run`` as lines for the terminal."""
    mark, writes = "passed" if run.passed else "FAILED", sum(run.outcomes.values())
    found = (
        f"{mark:>10}  {run.rounds.total()} rounds in {run.seconds / 60:.0f} min, {writes:,} writes around "
        f"failures, {sum(run.answers.values()):,} answers compared, {run.from_disk:,} pages read from disk "
        f"before: {len(run.stale)} old answers, {len(run.broken_promises)} carried out in spite of a 503"
    )
    return [
        found,
        *(f"    {count:4}  {name}" for name, count in sorted(run.rounds.items())),
        f"    writes  {dict(run.outcomes)}",
        f"   answers  {dict(run.answers)}",
        *(f"       old  {text}" for text in run.stale[:20]),
        *(f"    broken  {text}" for text in run.broken_promises[:20]),
    ]


@dataclass
class _Life:
    """The proxy over one medium. Each round ends the proxy and starts it again."""

    work: Path
    ram: Path
    medium: Medium
    arguments: tuple[str, ...]
    boot: int = 0
    phoenix: Phoenix = field(init=False)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.origin = self.work / "origin" / _BUCKET
        self.origin.mkdir(parents=True)
        (self.work / "failing").write_text("")
        self.reboot(lose=False)
        config = self.work / "config.toml"
        config.write_text(write_toml(self._settings()))
        command = [
            *_PROXY, "--config", str(config), "--failing", str(self.work / "failing"),
            "--boot", str(self.work / "boot"), *self.arguments,
        ]  # fmt: skip
        self.phoenix = Phoenix("proxy", self.work, lambda _turn: command, piped=False)

    def _settings(self) -> dict[str, object]:
        # Keep the state beside the disk tier, as by default. Both are then on the failing device, and no
        # healthy device can help.
        return {
            "s3": {"listen": "127.0.0.1:0"},
            "control": {"listen": "127.0.0.1:0"},
            "origin": {"kind": "file", "path": str(self.work / "origin")},
            "cache": {
                "ram": {"path": str(self.ram / "tier"), "capacity": _RAM},
                "disk": {"path": str(self.medium.root / "disk"), "capacity": _DISK, "min_free": "0"},
            },
            "state": {"path": str(self.medium.root / "state")},
            "policy": {"name": "lru"},
            "prefetch": {"enabled": False},
            "telemetry": {"log_level": "info", "log_format": "json"},
        }

    def start(self) -> None:
        self.server = wait_until_ready(self.phoenix.start(), _READY_S)

    def reboot(self, *, lose: bool) -> None:
        """Change the boot id, as a reboot does. With ``lose``, also drop the contents of RAM, as a power
        failure does.
        """
        self.boot += 1
        (self.work / "boot").write_text(f"boot-{self.boot}\n")
        if lose:
            shutil.rmtree(self.ram / "tier", ignore_errors=True)


class _Client:
    """A client that opens a new connection for each request, because the proxy may have been restarted."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self.etag = ""

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        control: bool = False,
    ) -> tuple[int, bytes, str]:
        """Send a request. Return the answer's status (0: no answer), body and x-shade-cache."""
        server = self._life.server
        address = urlsplit(server.control_url if control else server.s3_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port or 0, timeout=_ANSWER_S)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            self.etag = answer.headers.get("ETag", "")
            return answer.status, answer.read(), answer.headers.get("x-shade-cache", "")
        except (OSError, http.client.HTTPException):
            return 0, b"", ""
        finally:
            connection.close()


class Rounds:
    """The rounds over one medium. They add their findings to ``run``."""

    def __init__(self, life: _Life, run: MediaRun, choices: random.Random) -> None:
        self._life, self._run, self._choices = life, run, choices
        self._client = _Client(life)
        self._version = 0
        self._last: dict[int, str] = {}

    def prepare(self) -> None:
        for number in range(OBJECTS):
            (self._life.origin / str(number)).write_bytes(self._body())
        self._life.start()

    def play(self) -> None:
        """Play one round. At its end the proxy for the next round is running."""
        life, choices, medium = self._life, self._choices, self._life.medium
        for number in range(OBJECTS):
            if not (life.origin / str(number)).exists():
                self._client.ask("PUT", f"/{_BUCKET}/{number}", self._body())
        for _ in range(2):
            self._read_all("before")
        medium.settle()
        how = choices.choice(list(medium.breaks))
        # The medium breaks before, between or after the writes. Sometimes it heals before the proxy ends.
        broken_at = choices.choice((0, 0, OBJECTS // 2, OBJECTS))
        heals = choices.random() < 0.3
        for turn, number in enumerate(choices.sample(range(OBJECTS), OBJECTS)):
            if turn == broken_at:
                medium.break_(how)
            self._write(number)
        if broken_at == OBJECTS:
            medium.break_(how)
        self._read_all("broken")
        healed = " healed," if heals and medium.heal() else ""
        ended = self._end()
        self._run.rounds[f"{how},{healed} {ended}"] += 1
        medium.repair()
        life.start()
        self._read_all(f"after {how},{healed} {ended}")

    def _end(self) -> str:
        choices, life = self._choices, self._life
        kinds = [
            "kill -9",
            "SIGTERM",
            "image, same boot",
            "image, power failure",
            "SIGTERM, then power failure",
        ]
        kind = choices.choices(kinds, (4, 4, 2, 2, 1))[0]
        if kind.startswith("image") and not life.medium.keep_image():
            kind = "kill -9"
        number = signal.SIGTERM if kind.startswith("SIGTERM") else signal.SIGKILL
        life.phoenix.end(number)
        if "power" in kind:
            life.reboot(lose=True)
        return kind

    # ------------------------------------------------------------------ requests

    def _read_all(self, when: str) -> None:
        for number in range(OBJECTS):
            # Every second object is read only in a part, which the proxy stores alone.
            fields, part = (_PART_FIELDS, _PART) if number % 2 else ({}, slice(None))
            status, body, source = self._client.ask("GET", f"/{_BUCKET}/{number}", headers=fields)
            self._run.answers[f"{when.partition(' ')[0]}: {status}"] += 1
            self._run.from_disk += when == "before" and source == "disk"
            path = self._life.origin / str(number)
            if status in {200, 206} and (not path.exists() or body != path.read_bytes()[part]):
                self._found(when, number, f"old bytes from {source}")
            elif status == 404 and path.exists():
                self._found(when, number, "not found")

    def _found(self, when: str, number: int, what: str) -> None:
        turn, last = self._run.rounds.total(), self._last.get(number, "nothing")
        self._run.stale.append(f"round {turn}, {when}: {number}, {what}; its last write: {last}")

    def _write(self, number: int) -> None:
        kind = self._choices.choices(list(_WRITES), list(_WRITES.values()))[0]
        path = self._life.origin / str(number)
        before = path.read_bytes() if path.exists() else None
        status = self._carry_out(kind, number)
        self._run.outcomes[f"{kind}: {status}"] += 1
        self._last[number] = f"{kind}: {status}"
        now = path.read_bytes() if path.exists() else None
        if status == 503 and now != before:
            self._run.broken_promises.append(f"{kind} of {number} was answered 503, and carried out")

    def _carry_out(self, kind: str, number: int) -> int:
        ask, path = self._client.ask, f"/{_BUCKET}/{number}"
        match kind:
            case "PUT":
                return ask("PUT", path, self._body())[0]
            case "DELETE":
                return ask("DELETE", path)[0]
            case "copy":
                source = self._choices.randrange(OBJECTS)
                return ask("PUT", path, headers={"x-amz-copy-source": f"/{_BUCKET}/{source}"})[0]
            case "DeleteObjects":
                listed = f"<Delete><Object><Key>{number}</Key></Object></Delete>".encode()
                return ask("POST", f"/{_BUCKET}?delete", listed, _md5(listed))[0]
            case "multipart":
                return self._upload_in_parts(path)
            case _:
                return self._purge(number)

    def _upload_in_parts(self, path: str) -> int:
        ask = self._client.ask
        status, answer, _ = ask("POST", f"{path}?uploads")
        if (found := _UPLOAD_ID.search(answer)) is None:
            return status
        upload = found[1].decode()
        body = self._body()
        if (status := ask("PUT", f"{path}?partNumber=1&uploadId={upload}", body)[0]) != 200:
            return status
        part = f"<Part><PartNumber>1</PartNumber><ETag>{self._client.etag}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        return ask("POST", f"{path}?uploadId={upload}", document)[0]

    def _purge(self, number: int) -> int:
        """Change the object at the origin directly, and then purge it. Only by the purge does the proxy learn
        of the change.
        """
        path = self._life.origin / str(number)
        before = path.read_bytes() if path.exists() else None
        fresh = path.with_name(f".new-{number}")
        fresh.write_bytes(self._body())
        fresh.rename(path)
        asked = msgspec.json.encode({"uri": f"s3://{_BUCKET}/{number}"})
        fields = {"Content-Type": "application/json"}
        status, text, _ = self._client.ask("POST", "/v1/purge", asked, fields, control=True)
        status = end_of_purge(status, text, lambda path: self._client.ask("GET", path, control=True)[1])
        if status != 200:
            # The purge failed, so the proxy may still serve the old version. Restore that version at the
            # origin.
            path.unlink() if before is None else path.write_bytes(before)
        return status

    def _body(self) -> bytes:
        self._version += 1
        return self._choices.randbytes(self._choices.randrange(1000, 120_000))


def play(
    rounds: int,
    seed: int,
    line: Line,
    *,
    arguments: tuple[str, ...] = (),
    loops: bool = True,
) -> MediaRun:
    """Play ``rounds`` rounds. If ``loops`` is set and ext4 images can be mounted, half of the rounds are on
    an image.
    """
    run, began_s = MediaRun(seed), time.monotonic()
    with workplace(on_disk=True) as work:
        kinds: list[type[FailingDirectory | LoopMounted]] = [FailingDirectory]
        if loops and loop_mounts_work(work / "try"):
            kinds.append(LoopMounted)
        else:
            line("no loop mounts: ext4 that turns read-only is not among the faults")
        for turn, kind in enumerate(kinds):
            share = rounds // len(kinds) + (turn < rounds % len(kinds))
            place = work / kind.__name__
            place.mkdir()
            with workplace() as ram:
                medium: Medium = kind(place)
                life = _Life(place, ram, medium, arguments)
                _play_on(life, run, share, line)
    run.seconds = time.monotonic() - began_s
    return run


def _play_on(life: _Life, run: MediaRun, share: int, line: Line) -> None:
    played = Rounds(life, run, random.Random(f"{run.seed} {life.work.name}"))
    try:
        with life.phoenix:
            played.prepare()
            for _ in range(share):
                played.play()
                if run.rounds.total() % 10 == 0:
                    line(f"{run.rounds.total()} rounds, {len(run.stale)} stale, {dict(run.outcomes)}")
            life.phoenix.end(signal.SIGTERM)
    finally:
        with suppress(OSError, BenchError):
            life.medium.close()


def _md5(document: bytes) -> dict[str, str]:
    return {"Content-MD5": base64.b64encode(hashlib.md5(document, usedforsecurity=False).digest()).decode()}
