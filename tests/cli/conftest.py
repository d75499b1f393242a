"""A command line without the composition root. Tests replace the parts of it that commands call."""

import json
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from shadeproxy.app import origins
from shadeproxy.app import serve as serving
from shadeproxy.cli.main import app
from tests.support.cli_origin import FakeOrigin


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in os.environ:
        if name.upper().startswith("SHADEPROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def shade():
    """Return a function ``shade(ARGUMENTS)`` that runs ``shadeproxy ARGUMENTS``. A traceback of the command
    fails the test.
    """

    def shade(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return shade


@pytest.fixture
def composition(monkeypatch):
    """Return the stand-in for the composition root. Tests set ``serve`` and ``build_origin`` on it."""
    stand_in = SimpleNamespace()

    def serve(settings, load):
        stand_in.serve(settings, load)

    def build_origin(settings):
        return stand_in.build_origin(settings)

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(origins, "build_origin", build_origin)
    for name in ("check", "doctor", "init"):
        monkeypatch.delitem(sys.modules, f"shadeproxy.cli.{name}", raising=False)
    yield stand_in
    for name in ("check", "doctor", "init"):
        sys.modules.pop(f"shadeproxy.cli.{name}", None)


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def control():
    """Run a control listener that answers with ``control.answer`` (status, body), and records the
    requests.
    """
    noted = SimpleNamespace(answer=(200, "{}"), requests=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply()

        def do_DELETE(self):
            self.reply()

        def do_POST(self):
            self.reply()

        def reply(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            noted.requests.append(
                (self.command, self.path, self.headers.get("Authorization"), json.loads(body or b"null"))
            )
            status, text = noted.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments):
            """Log nothing, to keep the output of the tests clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        noted.port = server.server_port
        noted.url = f"http://127.0.0.1:{server.server_port}"
        yield noted
        server.shutdown()
        thread.join()


@pytest.fixture
def check(shade, composition, tmp_path):
    """Return a function ``check(ARGUMENTS)`` that runs ``shadeproxy check`` with small directories and free
    ports. ``check.origin`` is the origin that the command checks.
    """
    setup = SimpleNamespace(origin=FakeOrigin())
    composition.build_origin = lambda _settings: SimpleNamespace(origin=setup.origin)

    def run(*arguments):
        return shade(
            "check",
            *("--set", f"cache.ram.path={tmp_path / 'ram'}", "--set", "cache.ram.capacity=1 MiB"),
            *("--set", "cache.disk.capacity=1 MiB", "--set", "cache.disk.min_free=0"),
            *("--set", "s3.listen=127.0.0.1:0", "--set", "control.listen=127.0.0.1:0"),
            *arguments,
        )

    setup.run = run
    return setup
