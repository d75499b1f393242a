"""The servers of a measurement: the proxy under test and its origin. Each server is ready when it is
yielded.
"""

import shutil
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shadeproxy.core.sigv4 import Credentials
from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment, serving
from shadeproxy_bench.certificate import Certificate
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.requests import CLIENT

_SHM = Path("/dev/shm")
_CALL_TIMEOUT_S = 60.0
_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.origin")


class Served(NamedTuple):
    """A running server: its address, and the process that does the work, alone or by its children.

    ``trusted``: the PEM file of the authority that signed the server's certificate; "" for plain HTTP.
    """

    name: str
    host: str
    port: int
    pid: int
    control_url: str = ""
    control_token: str = ""
    trusted: str = ""

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the header field Host."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.trusted else 'http'}://{self.authority}"

    @property
    def control_fields(self) -> dict[str, str]:
        """Header fields that every control call needs."""
        return {"Authorization": f"Bearer {self.control_token}"} if self.control_token else {}

    def call(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        """Make a control call, and return the body of its answer. Raises HTTPError, URLError."""
        fields = {"Content-Type": content_type, **self.control_fields}
        request = urllib.request.Request(self.control_url + path, data=body, method=method, headers=fields)
        with urllib.request.urlopen(request, timeout=_CALL_TIMEOUT_S) as answer:
            return bytes(answer.read())


@contextmanager
def workplace(*, on_disk: bool = False) -> Iterator[Path]:
    """Make a directory for one measurement, and remove it afterwards. It is on tmpfs where there is one,
    unless ``on_disk`` is set.
    """
    parent = _SHM if _SHM.is_dir() and not on_disk else None
    path = Path(mkdtemp(prefix="shadeproxy-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def listening(name: str, command: Sequence[str], work: Path) -> Iterator[Served]:
    """Run a server that prints its port as its first line. Its log is ``work``/``name``.log. Raises
    ShadeProxyError if it ends before.
    """
    with running(name, command, log=work / f"{name}.log", env=plain_environment(), piped=True) as child:
        assert child.process.stdout is not None
        line = child.process.stdout.readline()
        if not line:
            raise child.failure()
        yield Served(name, "127.0.0.1", int(line), child.process.pid)


@contextmanager
def origin(
    work: Path,
    *,
    latency_s: float = 0.0,
    sigma: float = 0.0,
    rate: float = 0.0,
    seed: int = 0,
    certificate: Certificate | None = None,
    processes: int = 1,
    name: str = "origin",
) -> Iterator[Served]:
    """Run an S3 server that answers after ``latency_s`` (with ``sigma``: lognormal around it), over a link of
    ``rate`` bytes a second (0: unlimited). With ``certificate`` it speaks HTTPS only. ``processes``: number
    of processes that share its port; with a ``rate`` there can be only one.
    """
    command = [*_ORIGIN, "--latency", str(latency_s), "--sigma", str(sigma)]
    command += ["--rate", str(rate), "--seed", str(seed), "--processes", str(processes)]
    if certificate is not None:
        command += ["--cert", str(certificate.cert), "--key", str(certificate.key)]
    with listening(name, command, work) as served:
        yield served._replace(trusted=_trusted(certificate))


@contextmanager
def proxy(
    work: Path,
    behind: Served,
    *,
    ram_bytes: int,
    disk_bytes: int = 0,
    inflight_bytes: int = 0,
    origin_connections: int = 0,
    signed: bool = False,
    clients: Sequence[Credentials] = (CLIENT,),
    upstream: Credentials | None = None,
    rules: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Mapping[str, Any]] | None = None,
    certificate: Certificate | None = None,
    name: str = "proxy",
) -> Iterator[Served]:
    """Run ``shadeproxy serve`` in front of ``behind``, with empty caches. Settings that no argument names
    have their defaults.

    ``inflight_bytes``, ``origin_connections``: 0 is the default of the product. ``signed``: the proxy demands
    and verifies signatures. ``clients``: the clients that the proxy knows. ``upstream``: the credentials that
    sign requests to ``behind`` (None: unsigned). ``rules``: freshness by bucket and prefix. ``more``: other
    sections of the configuration. ``certificate``: the S3 listener of the proxy speaks HTTPS only.
    """
    own: dict[str, str] = {"source": "anonymous"}
    if upstream is not None:
        own = {"file": str(_credentials_file(work / f"{name}-upstream.secret", upstream))}
    settings: dict[str, Any] = {
        "origin": {"kind": "s3", "endpoint": behind.url, "ca_file": behind.trusted, "credentials": own},
        "cache": {"ram": {"capacity": ram_bytes}, "disk": {"capacity": disk_bytes, "min_free": "0"}},
        "rules": [dict(rule) for rule in rules],
        **(more or {}),
    }
    if certificate is not None:
        tls = {"cert": str(certificate.cert), "key": str(certificate.key)}
        settings["s3"] = {**settings.get("s3", {}), "tls": tls}
    if origin_connections:
        settings["origin"] = {**settings["origin"], "max_connections": origin_connections}
    if inflight_bytes:
        settings["cache"]["inflight"] = inflight_bytes
    # The proxy knows its clients even if it demands no signatures, because stock clients always sign.
    known = [_client(work / f"{name}-{turn}.secret", client) for turn, client in enumerate(clients)]
    settings["auth"] = {"anonymous": not signed, "clients": known}
    token = token_hex() if signed else ""
    if token:
        settings["control"] = {"token": f"file:{_secret_file(work / f'{name}-control.secret', token)}"}
    with serving(name, settings, work / name) as server:
        parts = urlsplit(server.s3_url)
        if parts.hostname is None or parts.port is None:
            raise BenchError(f"the proxy says that it listens on {server.s3_url!r}")
        yield Served(
            name, parts.hostname, parts.port, server.pid, server.control_url, token, _trusted(certificate)
        )


def _trusted(certificate: Certificate | None) -> str:
    return "" if certificate is None else str(certificate.cert)


def _credentials_file(path: Path, own: Credentials) -> Path:
    lines = ["[default]", f"aws_access_key_id={own.access_key}", f"aws_secret_access_key={own.secret_key}"]
    return _secret_file(path, "\n".join(lines))


def _client(secret: Path, client: Credentials) -> dict[str, str]:
    _secret_file(secret, client.secret_key)
    return {"access_key": client.access_key, "secret_file": str(secret), "upstream": "shared"}


def _secret_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path
