"""The faulty origin follows its script on the network, and keeps written objects when it is killed."""

import base64
import hashlib
import http.client
import signal
import sys
import time
import zlib

import pytest

from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.chaos.data import ChaosData
from shadeproxy_bench.reliability.chaos.injected import Injected
from shadeproxy_bench.reliability.chaos.wire import WireFault
from shadeproxy_bench.reliability.kit.bodies import BUCKET
from shadeproxy_bench.reliability.kit.processes import Phoenix
from shadeproxy_bench.reliability.kit.versions import Versions

DATA = ChaosData(3, 10**6)
CHECKED = next(n for n in DATA.ranges[4096] if n % 2 == 0 and not DATA.changes(n))
PLAIN = next(n for n in DATA.ranges[4096] if n % 2 == 1 and not DATA.changes(n))
CHANGING = next(n for n in DATA.ranges[4096] if DATA.is_of_origin(n))
ASKS_CHECKSUM = {"x-amz-checksum-mode": "ENABLED"}


class Origin:
    def __init__(self, phoenix, port, directory):
        self.phoenix, self.port = phoenix, port
        self.injected = Injected(directory / "injected", list(WireFault))
        self.start()

    def start(self):
        self.phoenix.start().process.stdout.readline()

    def ask(self, method, number, query="", body=None, timeout=30, **fields):
        """Return status, header fields and body of an answer. Raise the errors of http.client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            named = {name.replace("_", "-"): value for name, value in fields.items()}
            connection.request(method, f"/{BUCKET}/{DATA.keys[number]}{query}", body, named)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


@pytest.fixture
def origin(tmp_path):
    """Return a function ``start``. For example, ``start("CUT", "FLIP")`` runs an origin process with this
    script. Each later start of the process uses the next script in ``then``.
    """
    opened = []
    Versions.create(tmp_path / "versions", len(DATA))

    def start(*script, then=()):
        port, scripts = free_port(), [",".join(script), *then]

        def command(turn):
            options = {
                "seed": 3, "bytes": 10**6, "port": port, "directory": tmp_path / "held",
                "versions": tmp_path / "versions", "injected": tmp_path / "injected",
                "script": scripts[turn], "severity": 0,
            }  # fmt: skip
            started = [sys.executable, "-m", "shadeproxy_bench.reliability.chaos.origin"]
            return started + [f"--{name}={value}" for name, value in options.items()]

        opened.append(Phoenix("origin", tmp_path, command, piped=True))
        return Origin(opened[-1], port, tmp_path)

    yield start
    for one in opened:
        one.__exit__()


def crc32(body):
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def test_what_goes_wrong_is_what_the_script_says(origin):
    body = bytes(DATA.body(CHECKED, 0))
    served = origin(
        "ERROR_500", "CUT", "LENGTH_MORE", "FLIP", "LENGTH_LESS", "RESET", "NOT_HTTP", "ERROR_429"
    )
    status, _, document = served.ask("GET", PLAIN)
    assert (status, b"<Code>InternalError</Code>" in document) == (500, True)
    with pytest.raises(http.client.IncompleteRead):
        served.ask("GET", PLAIN)
    with pytest.raises(http.client.IncompleteRead):
        served.ask("GET", PLAIN)
    assert served.ask("GET", PLAIN)[2] == DATA.body(PLAIN, 0), "it comes without a checksum to flip under"
    status, fields, flipped = served.ask("GET", CHECKED, **ASKS_CHECKSUM)
    assert fields["x-amz-checksum-crc32"] == crc32(body)
    assert sum((one ^ other).bit_count() for one, other in zip(flipped, body, strict=True)) == 1
    shorter = served.ask("GET", CHECKED, **ASKS_CHECKSUM)[2]
    assert len(shorter) < len(body)
    assert body.startswith(shorter)
    with pytest.raises(ConnectionResetError):
        served.ask("GET", PLAIN)
    with pytest.raises(http.client.BadStatusLine):
        served.ask("GET", PLAIN)
    assert served.ask("HEAD", PLAIN)[0] == 429
    assert served.ask("GET", PLAIN)[0] == 200
    assert sum(served.injected.counts().values()) == 8


def test_it_stalls_trickles_and_refuses(origin):
    served = origin("STALL_HEAD", "STALL_BODY", "TRICKLE", "REFUSE")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            served.ask("GET", PLAIN, timeout=0.3)
    began = time.monotonic()
    assert served.ask("GET", PLAIN)[2] == DATA.body(PLAIN, 0)
    assert time.monotonic() - began > 1
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        served.ask("GET", PLAIN)
    with pytest.raises(ConnectionRefusedError):
        served.ask("GET", PLAIN)
    deadline = time.monotonic() + 30
    while True:
        try:
            assert served.ask("GET", PLAIN)[0] == 200
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_object_changes_under_its_reader(origin, tmp_path):
    served, versions = origin("CHANGE", "CHANGE_UNASKED"), Versions(tmp_path / "versions", len(DATA))
    assert served.ask("GET", CHANGING, if_match=DATA.tag(CHANGING, 0))[0] == 412
    assert versions.started(CHANGING) == 1
    status, fields, body = served.ask("GET", CHANGING, if_match=DATA.tag(CHANGING, 1))
    assert (status, fields["ETag"], body) == (200, DATA.tag(CHANGING, 2), DATA.body(CHANGING, 2))


def test_the_last_bytes_of_some_objects_are_refused(origin):
    served, numbers = origin(), DATA.ranges[4096][:5]
    assert sorted(served.ask("GET", number, range="bytes=-9")[0] for number in numbers) == [
        206,
        206,
        206,
        400,
        501,
    ]
    assert [served.ask("GET", number, range="bytes=4087-")[0] for number in numbers] == [206] * 5


def test_what_was_written_outlives_a_kill(origin):
    served = origin("LOST_ANSWER", then=("", "OK_ERROR"))
    number = DATA.ranges[4096][0]
    one, two = (bytes(DATA.body(number, version)) for version in (1, 2))
    with pytest.raises(http.client.RemoteDisconnected):
        served.ask("PUT", number, body=one, x_amz_meta_version="1")
    served.phoenix.end(signal.SIGKILL)
    served.start()
    assert served.ask("GET", number)[2] == one
    document = served.ask("POST", number, "?uploads", x_amz_meta_version="2")[2]
    upload = document.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
    for part, half in enumerate((two[:2000], two[2000:]), 1):
        assert served.ask("PUT", number, f"?partNumber={part}&uploadId={upload}", body=half)[0] == 200
    served.phoenix.end(signal.SIGKILL)
    served.start()
    status, _, document = served.ask("POST", number, f"?uploadId={upload}", body=b"<parts/>")
    assert (status, b"InternalError" in document) == (200, True)
    assert served.ask("GET", number)[2] == one
    status, _, document = served.ask("POST", number, f"?uploadId={upload}", body=b"<parts/>")
    assert (status, b"CompleteMultipartUploadResult" in document) == (200, True)
    assert served.ask("GET", number)[2] == two
    assert served.ask("PUT", number, body=one, x_amz_meta_version="1")[0] == 200
    assert served.ask("GET", number)[2] == two, "a write that comes late counts as overwritten"
    wrong = hashlib.sha256(one).digest() * 128
    assert served.ask("PUT", number, body=wrong, x_amz_meta_version="3")[0] == 400
