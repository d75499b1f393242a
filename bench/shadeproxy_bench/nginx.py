"""nginx as the reference: one worker that serves files on tmpfs, with every variant of its settings that may
be the fastest.

All variants are ports of one process. Its CPU is therefore the CPU of one worker, whichever port is read.
"""

import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.certificate import Certificate
from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.load import PATH
from shadeproxy_bench.objects import Piece, write_objects
from shadeproxy_bench.ports import free_port
from shadeproxy_bench.server import Served

_START_S = 10.0
_CONFIG = """
{user} daemon off; master_process on; worker_processes 1; worker_rlimit_nofile 65536;
pid {work}/pid; error_log stderr warn;
events {{ worker_connections 4096; multi_accept on; use epoll; }}
http {{
  access_log off; server_tokens off; default_type application/octet-stream;
  keepalive_timeout 1h; keepalive_requests 1000000000;
  tcp_nodelay on; etag on; reset_timedout_connection on;
  open_file_cache max=100000 inactive=1h; open_file_cache_valid 1h; open_file_cache_min_uses 1;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  proxy_cache_path {work}/cache levels=1:2 keys_zone=objects:64m max_size={cache_bytes}
    inactive=1h use_temp_path=off manager_files=100000 manager_threshold=1s;
  {servers}
}}
"""
_FILES = "server {{ listen 127.0.0.1:{port}{tls}; root {root}; {options} }}\n"
_CACHED = (
    "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream};"
    " proxy_http_version 1.1; proxy_set_header Connection ''; proxy_cache objects; proxy_cache_valid 200 1h;"
    " proxy_cache_key $uri; sendfile on; tcp_nopush on; }} }}\n"
)
# The proxy speaks TLS 1.3, which nginx before 1.23 does not offer by default.
_TLS = " ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {cert}; ssl_certificate_key {key}"
_STORING = (
    "upstream origin {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}\n"
    "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://origin;"
    " proxy_http_version 1.1; proxy_set_header Connection ''; proxy_cache objects; proxy_cache_valid 200 1h;"
    " proxy_cache_key $uri; add_header x-shade-cache $upstream_cache_status; }} }}\n"
)
_CACHE_BYTES = 8 << 30
VARIANTS = {
    "sendfile": "sendfile on; sendfile_max_chunk 0;",
    "sendfile, tcp_nopush": "sendfile on; sendfile_max_chunk 0; tcp_nopush on;",
    "sendfile off": "sendfile off; output_buffers 2 512k;",
}
PROXY_CACHE = "proxy_cache hit"
STORING = "proxy_cache"


@contextmanager
def nginx(
    work: Path, pieces: Iterable[Piece], *, cached: bool = True, certificate: Certificate | None = None
) -> Iterator[list[Served]]:
    """Serve the objects of ``pieces`` by nginx. They are written below ``work``, which should be on tmpfs.

    Yields one server for each variant of the settings. ``cached``: proxy_cache is one of the variants, with
    nginx itself as its upstream. ``certificate``: the variants that read files speak HTTPS only, and
    proxy_cache is left out. Raises ReferenceMissing where nginx is not installed.
    """
    cached = cached and certificate is None
    nginx_program()
    root = work / "nginx-files"
    write_objects(root, pieces)
    names = (*VARIANTS, *([PROXY_CACHE] if cached else []))
    ports = _ports(names)
    tls = "" if certificate is None else _TLS.format(cert=certificate.cert, key=certificate.key)
    servers = "".join(
        _FILES.format(port=ports[name], tls=tls, root=root, options=options)
        for name, options in VARIANTS.items()
    )
    if cached:
        servers += _CACHED.format(port=ports[PROXY_CACHE], upstream=ports["sendfile"])
    with _running(work, servers, ports) as started:
        yield [one if certificate is None else one._replace(trusted=str(certificate.cert)) for one in started]


@contextmanager
def storing_nginx(work: Path, behind: Served, *, cache_bytes: int = _CACHE_BYTES) -> Iterator[Served]:
    """Run nginx with an empty ``proxy_cache`` of ``cache_bytes`` in ``work``, in front of ``behind``.

    nginx keeps its connections to ``behind``. Its answers say HIT or MISS in x-shade-cache. Raises
    ReferenceMissing where nginx is not installed.
    """
    ports = _ports([STORING])
    servers = _STORING.format(port=ports[STORING], upstream=behind.authority)
    with _running(work, servers, ports, cache_bytes=cache_bytes) as (started,):
        yield started


def nginx_program() -> str:
    """Return the path of nginx. Raises ReferenceMissing where it is not installed."""
    program = shutil.which("nginx", path=PATH)
    if program is None:
        raise ReferenceMissing("nginx is not installed; on Debian and Ubuntu: apt-get install nginx-light")
    return program


def _ports(names: Sequence[str]) -> dict[str, int]:
    """Return a free port for each name. nginx does not report the ports that it takes, so they are chosen
    here.
    """
    return dict(zip(names, count(free_port(len(names))), strict=False))


@contextmanager
def _running(
    work: Path, servers: str, ports: Mapping[str, int], *, cache_bytes: int = _CACHE_BYTES
) -> Iterator[list[Served]]:
    """Run nginx with the server blocks ``servers``, which listen at ``ports``, in a new directory of
    ``work``.
    """
    program = nginx_program()
    own = work / "nginx"
    own.mkdir()
    config = own / "nginx.conf"
    # A worker started by root would otherwise become a user who may not read our directories.
    user = "user root root;" if os.getuid() == 0 else ""
    config.write_text(_CONFIG.format(user=user, work=own, servers=servers, cache_bytes=cache_bytes))
    command = [program, "-e", "stderr", "-p", str(own), "-c", str(config)]
    with running("nginx", command, log=own / "log", env=plain_environment()) as child:
        for port in ports.values():
            _wait_for(port, child)
        yield [Served(name, "127.0.0.1", port, child.process.pid) for name, port in ports.items()]


def _wait_for(port: int, child: Child) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if child.process.poll() is not None:
            raise child.failure()
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.02)
    raise BenchError(f"nginx does not listen after {_START_S:.0f} s:\n{child.log.read_text()}")
