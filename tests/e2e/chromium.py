"""A web page shown in a real Chromium under any host name. The host name can later be made to lead to a
proxy.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

_LIMIT_S = 60.0
_NAMES = "MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Site(ThreadingHTTPServer):
    """A web site on a loopback address. ``page`` is the HTML served at /page; its script sends one report.

    ``leads_to`` is the URL of another listener, or "". If it is set, the site passes all other requests on to
    that listener unchanged. So the site's name leads to the listener, as after DNS rebinding.
    """

    daemon_threads = True

    def __init__(self, page: str, leads_to: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Visit)
        self.page = page
        self.leads_to = leads_to
        self.report: Any = None
        self.reported = threading.Event()


class _Visit(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/page"):
            self._answer(200, [("Content-Type", "text/html; charset=utf-8")], self.server.page.encode())
        elif self.path == "/report":
            self.server.report = json.loads(body)
            self._answer(204, [], b"")
            self.server.reported.set()
        elif self.server.leads_to:
            self._pass_on(body)
        else:
            self._answer(404, [], b"")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815 - http.server's names

    def _pass_on(self, body: bytes) -> None:
        target = http.client.HTTPConnection(urlsplit(self.server.leads_to).netloc, timeout=20)
        try:
            target.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                target.putheader(name, value)
            target.endheaders(body)
            answer = target.getresponse()
            headers = [field for field in answer.getheaders() if field[0].lower() not in _HOP]
            self._answer(answer.status, headers, answer.read())
        finally:
            target.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def chromium() -> str:
    """Return the path of Chromium; skip the test if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@contextmanager
def _shown(url: str, directory: Path) -> Iterator[None]:
    """Show ``url`` in Chromium until the block ends. All host names that end in ``.example`` resolve to this
    machine.
    """
    log = (directory / "chromium.log").open("wb")
    process = subprocess.Popen(
        [
            chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            # Switch this check off, because browsers with an older or looser one send these requests too.
            "--disable-features=LocalNetworkAccessChecks",
            f"--host-resolver-rules={_NAMES}",
            f"--user-data-dir={directory / 'profile'}", "--remote-debugging-port=0", url,
        ],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def visit(page: str, directory: Path, *, host: str = "evil.example", leads_to: str = "", **given: str) -> Any:
    """Show ``page`` under the name ``host``, and return the report of its script. The script can read
    ``given``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with Site(page, leads_to) as site:
        serving = threading.Thread(target=site.serve_forever, args=(0.05,))
        serving.start()
        try:
            url = f"http://{host}:{site.server_port}/page#{quote(json.dumps(given))}"
            with _shown(url, directory):
                assert site.reported.wait(_LIMIT_S), (directory / "chromium.log").read_text()
        finally:
            site.shutdown()
            serving.join()
        return site.report


def script(body: str) -> str:
    """Return a page whose script runs ``body`` in an async function with ``given`` and reports its result."""
    return f"""<!doctype html><title>a page</title><body><script>
const given = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{{}}");
const outcome = async (work) => {{
  try {{ return await work() }} catch (error) {{ return String(error) }}
}};
const show = async (answer) =>
  [answer.type, answer.status, answer.type === "opaque" ? "" : await answer.text()];
const send = (url, how) => outcome(async () => show(await fetch(url, how)));
const posted = (action, enctype, fields) => new Promise((done) => {{
  const frame = document.createElement("iframe"), form = document.createElement("form");
  frame.name = "frame" + Math.random();
  document.body.append(frame, form);
  Object.assign(form, {{method: "POST", action, enctype, target: frame.name}});
  for (const [name, value] of Object.entries(fields)) {{
    const field = document.createElement("textarea");
    Object.assign(field, {{name, value}});
    form.append(field);
  }}
  frame.onload = () => {{ if (form.sent) done("sent") }};
  form.sent = true;
  form.submit();
}});
(async () => {{
  const report = await outcome(async () => {{ {body} }});
  await fetch("/report", {{method: "POST", body: JSON.stringify(report)}});
}})();
</script>"""
