"""The logs of a proxy of several processes: each request is logged once, as with one process."""

import http.client
import json
import signal
import urllib.request
from contextlib import closing

import pytest

from tests.support.certificate import write_certificate
from tests.support.served import log_of, wait_for
from tests.support.workers import wait_for_workers, worker_pids

BODY = b"body" * 1000


def get(connection, path: str, method: str = "GET", body: bytes | None = None) -> str:
    """Send a request, and return the request id of the answer."""
    connection.request(method, path, body)
    answer = connection.getresponse()
    answer.read()
    return answer.headers["x-amz-request-id"]


@pytest.fixture(params=["plain", "tls"])
def start(serve, bucket_directory, tmp_path, request):
    """Return a function ``begin(**settings)``. It runs a proxy with two cached objects, and returns a
    function that opens a connection to the proxy.
    """
    secure = write_certificate(tmp_path) if request.param == "tls" else None

    def begin(count: int = 2, config=None, **settings: str):
        if secure is not None:
            settings |= {"s3__tls__cert": str(secure.cert), "s3__tls__key": str(secure.key)}
        served = serve(
            config,
            origin__kind="file",
            origin__path=str(bucket_directory),
            s3__workers=str(count),
            **settings,
        )
        wait_for_workers(served)

        def connect():
            address = served.s3.partition("://")[2]
            if secure is None:
                return closing(http.client.HTTPConnection(address, timeout=20))
            context = secure.client_context()
            return closing(http.client.HTTPSConnection(address, timeout=20, context=context))

        for n in range(2):
            (bucket_directory / "data" / str(n)).write_bytes(BODY)
            for _ in range(2):
                with connect() as connection:
                    get(connection, f"/data/{n}")
        return served, connect

    return begin


ASKED = [
    ("/data/0", "GET"), ("/data/1", "GET"), ("/data/0", "HEAD"), ("/data/none", "GET"), ("/data/new", "PUT"),
    ("/data/0", "GET"), ("/data?list-type=2", "GET"), ("/data/none", "HEAD"), ("/nothing/at/all", "GET"),
]  # fmt: skip


def test_each_request_is_in_the_access_log_once_whoever_answers(start):
    served, connect = start(telemetry__access_log="true")
    wait_for(lambda: len(log_of(served, "request")) == 4)
    answered = []
    for _ in range(12):
        with connect() as connection:
            answered += [
                get(connection, path, method, b"x" if method == "PUT" else None) for path, method in ASKED
            ]
    # The proxy writes the log line of a request after it has sent the answer.
    wait_for(lambda: len(log_of(served, "request")) >= 4 + len(answered))
    served.process.send_signal(signal.SIGSTOP)
    by_worker = []
    with connect() as connection:
        by_worker += [get(connection, f"/data/{n % 2}") for n in range(10)]
    wait_for(lambda: len(log_of(served, "request")) >= 4 + len(answered) + len(by_worker))
    served.process.send_signal(signal.SIGCONT)
    assert served.stop() == 0
    lines = log_of(served, "request")[4:]
    assert sorted(line["request_id"] for line in lines) == sorted(answered + by_worker)
    by_id = {line["request_id"]: line for line in lines}
    for line in (by_id[one] for one in by_worker):
        assert (line["operation"], line["bucket"], line["status"]) == ("GetObject", "data", 200)
        assert (line["source"], line["bytes"], line["level"]) == (
            "ram", len(BODY), "info",
        )  # fmt: skip


def test_lines_of_the_access_log_have_the_same_form_with_one_process_and_with_two(start):
    forms = []
    for count in (1, 2):
        served, connect = start(count, telemetry__access_log="true")
        if count == 2:
            served.process.send_signal(signal.SIGSTOP)
        with connect() as connection:
            get(connection, "/data/0")
            served.process.send_signal(signal.SIGCONT)
            get(connection, "/data/none")
            get(connection, "/data/1")
        assert served.stop() == 0
        changing = {"request_id", "timestamp", "ms"}
        lines = [
            {key: type(value).__name__ if key in changing else value for key, value in line.items()}
            for line in log_of(served, "request")
        ]
        # The lines of two processes come in any order, so sort them.
        forms.append(sorted(map(json.dumps, lines)))
    assert forms[0] == forms[1]


def put_level(served, level: str) -> None:
    request = urllib.request.Request(
        f"{served.control}/v1/log-level", json.dumps({"level": level}).encode(), method="PUT"
    )
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer) == {"level": level}


@pytest.mark.parametrize("how", ["setting", "call"])
def test_at_level_debug_each_process_logs_what_it_answers_and_which_it_is(start, how):
    served, connect = start(**({"telemetry__log_level": "debug"} if how == "setting" else {}))
    if how == "call":
        put_level(served, "debug")
    (worker,) = worker_pids(served)
    served.process.send_signal(signal.SIGSTOP)
    with connect() as connection:
        hits = [get(connection, f"/data/{n % 2}") for n in range(4)]
        served.process.send_signal(signal.SIGCONT)
        relayed = [get(connection, "/data/none") for _ in range(3)]
    wait_for(lambda: {line["request_id"] for line in log_of(served, "s3_request")} >= {*hits, *relayed})
    by_id = {}
    for line in log_of(served, "s3_request"):
        assert line["request_id"] not in by_id, "logged twice"
        by_id[line["request_id"]] = line
    assert {by_id[one].get("worker") for one in hits} == {worker}
    assert {by_id[one].get("worker") for one in relayed} == {None}
    assert {by_id[one]["path"] for one in hits} == {"/data/0", "/data/1"}
    if how == "call":
        put_level(served, "info")
        before = len(log_of(served, "s3_request"))
        for _ in range(8):
            with connect() as connection:
                get(connection, "/data/0")
                get(connection, "/data/none")
        assert len(log_of(served, "s3_request")) == before


def test_the_access_log_is_switched_by_a_reload_in_every_process(start, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("")
    served, connect = start(config=config)
    for text, logged in (("[telemetry]\naccess_log = true", True), ("", False)):
        config.write_text(text)
        before = len(log_of(served, "configuration reloaded"))
        served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(log_of(served, "configuration reloaded")) > before)  # noqa: B023 - called here
        seen, asked = len(log_of(served, "request")), 0
        for _ in range(8):
            with connect() as connection:
                for path in ("/data/0", "/data/none", "/data/1"):
                    get(connection, path)
                    asked += 1
        if logged:
            wait_for(lambda: len(log_of(served, "request")) >= seen + asked)  # noqa: B023 - called here
        assert len(log_of(served, "request")) == seen + asked * logged
