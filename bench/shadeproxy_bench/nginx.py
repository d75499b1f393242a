"""nginx as the reference: one worker, files on tmpfs, and every variant of its settings that may be the
fastest.

All variants are ports of one process. The CPU of that process is therefore that of one worker, whichever port
is read.
"""

import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment
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
  proxy_cache_path {work}/cache levels=1:2 keys_zone=objects:64m max_size=8g inactive=1h use_temp_path=off;
  {servers}
}}
"""
_FILES = "server {{ listen 127.0.0.1:{port}; root {root}; {options} }}\n"
_CACHED = (
    "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream};"
    " proxy_http_version 1.1; proxy_set_header Connection ''; proxy_cache objects; proxy_cache_valid 200 1h;"
    " proxy_cache_key $uri; sendfile on; tcp_nopush on; }} }}\n"
)
VARIANTS = {
    "sendfile": "sendfile on; sendfile_max_chunk 0;",
    "sendfile, tcp_nopush": "sendfile on; sendfile_max_chunk 0; tcp_nopush on;",
    "sendfile off": "sendfile off; output_buffers 2 512k;",
}
PROXY_CACHE = "proxy_cache hit"


@contextmanager
def nginx(work: Path, pieces: Iterable[Piece], *, cached: bool = True) -> Iterator[list[Served]]:
    """Serve the objects of ``pieces``, written below ``work`` (which should be on tmpfs), by nginx.

    Yields one server for each variant. ``cached``: include proxy_cache, whose upstream is nginx itself.
    Raises ReferenceMissing if nginx is not installed.
    """
    program = shutil.which("nginx", path=PATH)
    if program is None:
        raise ReferenceMissing("nginx is not installed; on Debian and Ubuntu: apt-get install nginx-light")
    root = work / "nginx-files"
    write_objects(root, pieces)
    own = work / "nginx"
    own.mkdir()
    names = (*VARIANTS, *([PROXY_CACHE] if cached else []))
    # nginx does not report the ports on which it listens, so choose them here.
    ports = dict(zip(names, count(free_port(len(names))), strict=False))
    servers = "".join(
        _FILES.format(port=ports[name], root=root, options=options) for name, options in VARIANTS.items()
    )
    if cached:
        servers += _CACHED.format(port=ports[PROXY_CACHE], upstream=ports["sendfile"])
    config = own / "nginx.conf"
    # Otherwise a worker started by root would become the user nobody, who may not read our directories.
    user = "user root root;" if os.getuid() == 0 else ""
    config.write_text(_CONFIG.format(user=user, work=own, servers=servers))
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
