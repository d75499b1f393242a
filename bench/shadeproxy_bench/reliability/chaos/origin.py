"""The faulty origin, a process of its own: the soak's origin, extended by multipart uploads, CopyObject and
CRC-32 checksums. The faults of ``wire.py`` spoil its answers on the wire.

Present versions and parts of uploads are in files, so that the origin can be killed. The version of an object
only grows: if an older version arrives after a newer one, the newer one stays. SIGUSR1 ends all faults.
"""

import argparse
import asyncio
import base64
import random
import signal
import zlib
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from urllib.parse import parse_qs, unquote

import uvloop

from shadeproxy_bench.listening import listen, port_of
from shadeproxy_bench.reliability.chaos import wire
from shadeproxy_bench.reliability.chaos.data import ChaosData, Present
from shadeproxy_bench.reliability.chaos.injected import Injected
from shadeproxy_bench.reliability.chaos.spoiled import Spoiler
from shadeproxy_bench.reliability.chaos.wire import WireFault
from shadeproxy_bench.reliability.kit.bodies import BUCKET, PAGE_BYTES
from shadeproxy_bench.reliability.kit.origin import Fields, Parts, answer_of, created_of, error_of, result_of
from shadeproxy_bench.reliability.kit.schedule import Schedule
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak.origin import SoakConnection, SoakOrigin

_XML = {"Content-Type": "application/xml"}
_KNOWN_CHECKSUMS = 4096
_THROTTLE_S, _REFUSE_S, _DELAY_S = 0.5, 1.0, 1.5
_CHANGE_EVERY_S = 0.3
_REFUSED_LAST_BYTES = {
    1: ("501 Not Implemented", "NotImplemented"),
    2: ("400 Bad Request", "InvalidArgument"),
}
_REFUSED_STRIDE = 5
"""Refusals of the last bytes (``Range: bytes=-n``) of an object, by its number modulo five. Origins that do
not support such ranges answer so.
"""
_UPLOAD_BYTES = 64 * 1024
"""Smallest upload whose body is sent only after its head was answered. A smaller upload arrives together with
its head, so no fault can be injected between its head and its body.
"""


class ChaosOrigin(SoakOrigin):
    """The faulty origin. ``data``: the objects, with a writer for each. ``directory``: where the parts of
    uploads are kept.
    """

    data: ChaosData

    def __init__(
        self, data: ChaosData, present: Present, started: Versions, directory: Path, latency_s: float
    ) -> None:
        super().__init__(data, latency_s)
        self.present, self.started, self.directory = present, started, directory
        self._checksums: OrderedDict[str, str] = OrderedDict()

    def version(self, number: int) -> int:
        return self.present[number]

    def put(self, number: int, version: int, body: bytes) -> bool:
        if body != bytes(self.data.body(number, version)):
            return False
        self.present[number] = max(version, self.present[number])
        return True

    def change(self, number: int) -> None:
        """Change an object, like a writer that bypasses the proxy. If the proxy must check the object at each
        read, all reads that begin from now on must return the new version.
        """
        version = self.present[number] = self.started.start(number)
        if self.data.is_confirmed(number):
            self.started.acknowledge(number, version)

    def is_checked(self, number: int) -> bool:
        """Return whether the answer to a GET of the whole object has a checksum."""
        return number % 2 == 0 and self.data.sizes[number] > 0

    def refused_last_bytes(self, number: int, fields: Fields) -> tuple[str, str] | None:
        """Return status and code of the answer, if ``fields`` ask for last bytes that are refused."""
        asks = fields.get("range", "").startswith("bytes=-")
        return _REFUSED_LAST_BYTES.get(number % _REFUSED_STRIDE) if asks else None

    def checksum(self, number: int) -> str:
        """Return the CRC-32 of the present body, as base64."""
        tag = self.tag(number)
        if tag not in self._checksums:
            while len(self._checksums) >= _KNOWN_CHECKSUMS:
                self._checksums.popitem(last=False)
            crc = zlib.crc32(self.body(number))
            self._checksums[tag] = base64.b64encode(crc.to_bytes(4, "big")).decode()
        return self._checksums[tag]


class ChaosConnection(SoakConnection):
    """One connection to the faulty origin. The server's ``schedule`` chooses which of its answers are
    spoiled.
    """

    _origin: ChaosOrigin

    def __init__(self, origin: ChaosOrigin, server: "Server") -> None:
        super().__init__(origin)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._server.connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def expects(self, fields: Fields) -> bool:
        if int(fields.get("content-length", "0")) < _UPLOAD_BYTES:
            return True
        if self._server.schedule.next(wire.UPLOAD) is None:
            return True
        self._transport.writelines(error_of("503 Slow Down", "SlowDown", "PUT"))
        self._transport.close()
        return False

    def respond(self, method: str, target: str, fields: Fields, body: bytes) -> None:
        operation = self._operation(method, target, fields)
        server, loop = self._server, asyncio.get_running_loop()
        fault = server.schedule.next(operation)
        if fault is WireFault.THROTTLE:
            server.throttled_until_s = loop.time() + _THROTTLE_S
        if fault is WireFault.REFUSE:
            server.refuse()
            return
        if loop.time() < server.throttled_until_s:
            self._write(error_of("503 Slow Down", "SlowDown", method))
            return
        if fault in {WireFault.CHANGE, WireFault.CHANGE_UNASKED}:
            self._change(target)
            if fault is WireFault.CHANGE_UNASKED:
                fields = {name: value for name, value in fields.items() if name != "if-match"}
        spoiler = Spoiler(self._transport, fault, server.schedule.choose)
        if spoiler.refuses(method):
            return
        parts = self.answer(method, target, fields, body)
        delay_s = _DELAY_S if fault is WireFault.DELAY else 0.0
        loop.call_later(self._origin.latency_s + delay_s, spoiler.write, parts)

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> Parts:
        path, _, query = target.partition("?")
        number = self._origin.data.number_of(unquote(path.removeprefix(f"/{BUCKET}/")))
        if number is not None and "x-amz-copy-source" in fields:
            return answer_of("200 OK", result_of("CopyObject", self._origin.tag(number)), _XML)
        asked = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        if number is not None and ("uploads" in asked or "uploadId" in asked):
            return self._multipart(method, number, asked, fields, body)
        if number is not None and (refused := self._origin.refused_last_bytes(number, fields)) is not None:
            return error_of(*refused, method)
        parts = super().answer(method, target, fields, body)
        if number is not None and self._operation(method, target, fields) == wire.CHECKED:
            line = f"x-amz-checksum-crc32: {self._origin.checksum(number)}\r\n\r\n".encode()
            parts[0] = bytes(parts[0])[:-2] + line
        return parts

    def _operation(self, method: str, target: str, fields: Fields) -> str:
        path, _, query = target.partition("?")
        number = self._origin.data.number_of(unquote(path.removeprefix(f"/{BUCKET}/")))
        if number is None:
            return wire.LIST
        if method == "HEAD":
            return wire.HEAD
        if method != "GET":
            finishes = "x-amz-copy-source" in fields or (method == "POST" and "uploadId" in query)
            return wire.FINISH if finishes else wire.WRITE
        return self._read(number, fields)

    def _read(self, number: int, fields: Fields) -> str:
        if self._origin.refused_last_bytes(number, fields) is not None:
            return wire.HEAD
        if self._origin.data.is_of_origin(number) and "if-match" in fields:
            return wire.CHANGING
        if "range" in fields:
            return wire.RANGED
        if self._origin.data.sizes[number] > PAGE_BYTES:
            return wire.PAGED
        checked = fields.get("x-amz-checksum-mode") == "ENABLED" and self._origin.is_checked(number)
        return wire.CHECKED if checked else wire.READ

    def _change(self, target: str) -> None:
        path = target.partition("?")[0]
        number = self._origin.data.number_of(unquote(path.removeprefix(f"/{BUCKET}/")))
        assert number is not None, "only reads of objects change one"
        self._origin.change(number)

    def _multipart(self, method: str, number: int, asked: Fields, fields: Fields, body: bytes) -> Parts:
        if "uploads" in asked:
            upload = f"{fields['x-amz-meta-version']}-{token_hex(8)}"
            (self._origin.directory / upload).mkdir()
            return answer_of("200 OK", created_of(upload), _XML)
        directory = self._origin.directory / Path(asked["uploadId"]).name
        if not directory.is_dir():
            return error_of("404 Not Found", "NoSuchUpload", method)
        if method == "PUT":
            (directory / f"{int(asked['partNumber']):05d}").write_bytes(body)
            return answer_of("200 OK", b"", {"ETag": f'"{zlib.crc32(body):032x}"'})
        if method == "DELETE":
            return answer_of("204 No Content", b"", {})
        whole = b"".join(part.read_bytes() for part in sorted(directory.iterdir()))
        if not self._origin.put(number, int(directory.name.partition("-")[0]), whole):
            return error_of("400 Bad Request", "BadDigest", method)
        return answer_of("200 OK", result_of("CompleteMultipartUpload", self._origin.tag(number)), _XML)


class Server:
    """The origin's listener on ``port`` of loopback (0: any port). It can refuse connections for a while."""

    def __init__(self, origin: ChaosOrigin, schedule: Schedule[WireFault], port: int) -> None:
        self.schedule = schedule
        self.connections: set[ChaosConnection] = set()
        self.throttled_until_s = 0.0
        self.port = port
        self._origin = origin
        self._listener: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Accept connections from now on."""
        self._listener = await listen(lambda: ChaosConnection(self._origin, self), self.port)
        self.port = port_of(self._listener)

    def refuse(self) -> None:
        """Close the listener and all connections. Listen again after a while."""
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._refuse())

    async def _refuse(self) -> None:
        assert self._listener is not None, "refused before it listened"
        self._listener.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(_REFUSE_S)
        await self.listen()


async def _serve(server: Server, origin: ChaosOrigin, changes: random.Random | None) -> None:
    """Serve until the process is killed. ``changes``: chooses objects to change; None: change none."""
    ended = asyncio.Event()

    def end() -> None:
        server.schedule.end()
        ended.set()

    await server.listen()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, end)
    print(server.port, flush=True)
    if changes is not None:
        await _change_some(origin, changes, ended)
    await asyncio.Event().wait()


async def _change_some(origin: ChaosOrigin, choices: random.Random, ended: asyncio.Event) -> None:
    """Change an object now and then, until ``ended``. Only a check shows the proxy that it changed."""
    data = origin.data
    numbers = [
        number for number in range(len(data)) if data.is_of_origin(number) and data.is_confirmed(number)
    ]
    while not ended.is_set():
        origin.change(choices.choice(numbers))
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _CHANGE_EVERY_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="The origin of a chaos run.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of the data set")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--directory", type=Path, required=True, help="what it holds")
    parser.add_argument("--versions", type=Path, required=True, help="which versions may be read")
    parser.add_argument("--injected", type=Path, required=True, help="where faults are counted")
    parser.add_argument("--turn", type=int, default=0, help="which of the processes that are killed in turn")
    parser.add_argument("--severity", type=float, default=1.0, help="multiplies all rates")
    parser.add_argument("--script", default="", help="names of faults, with commas; then nothing more")
    parser.add_argument("--latency", type=float, default=0.002, help="seconds before each answer")
    options = parser.parse_args()
    data = ChaosData(options.seed, options.bytes)
    injected = Injected(options.injected, list(WireFault))
    script = [WireFault[name] for name in options.script.split(",") if name]
    rates = {} if script else {kind: rate * options.severity for kind, rate in wire.RATES.items()}
    schedule = wire.scheduled(
        script=script, rates=rates, seed=options.seed * 1000 + options.turn, noted=injected.note
    )
    parts = options.directory / "uploads"
    parts.mkdir(parents=True, exist_ok=True)
    present = Present(options.directory / "present", len(data))
    started = Versions(options.versions, len(data))
    origin = ChaosOrigin(data, present, started, parts, options.latency)
    changes = random.Random(options.seed * 1000 + options.turn) if rates and options.severity else None
    uvloop.run(_serve(Server(origin, schedule, options.port), origin, changes))


if __name__ == "__main__":
    main()
