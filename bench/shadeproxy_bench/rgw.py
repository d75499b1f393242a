"""Ceph RGW as the reference: a real S3 server on this machine, which checks signatures.

It consists of one monitor, one OSD that keeps the objects in its memory, and one gateway. A script of the
tests starts the three; it exists only in a checkout. However the ``with`` block ends, all processes are ended
and all files are removed.
"""

import http.client
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD, Credentials
from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.objects import BUCKET, Piece
from shadeproxy_bench.ports import free_port
from shadeproxy_bench.requests import signature_of
from shadeproxy_bench.server import Served

SCRIPT = Path(__file__).parents[2] / "tests" / "rgw" / "start_radosgw.sh"
PROGRAMS = ("radosgw", "ceph-mon", "ceph-osd", "monmaptool", "ceph", "curl")
_INSTALL = (
    "RUNLEVEL=1 apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-base ceph-common curl"
)
_START_S = 110.0
_PUT_S = 60.0


class Gateway(NamedTuple):
    """A running gateway, and the credentials of its two accounts."""

    served: Served
    main: Credentials
    alt: Credentials


@contextmanager
def rgw(work: Path, *, store_gib: int = 2, settings: str = "", threads: int = 64) -> Iterator[Gateway]:
    """Run Ceph RGW with all of its files below ``work``. The start takes 12 s. ``settings``: lines for the
    gateway's section of ceph.conf. ``threads``: rgw_thread_pool_size, whose default in Ceph is 512.

    Raises ReferenceMissing if the script or Ceph is missing, ShadeProxyError if RGW does not start.
    """
    if not SCRIPT.is_file():
        raise ReferenceMissing("Ceph RGW is started by tests/rgw/start_radosgw.sh, which only a checkout has")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise ReferenceMissing(f"{', '.join(missing)} not installed; on Debian and Ubuntu: {_INSTALL}")
    folder, port = work / "cluster", free_port()
    environment = {
        **plain_environment(),
        "MON_PORT": str(free_port(2)),
        "RGW_STORE_GB": str(store_gib),
        "RGW_THREADS": str(threads),
        "RGW_EXTRA": settings,
    }
    try:
        log = work / "start.log"
        command = ["/bin/bash", str(SCRIPT), "start", str(folder), str(port)]
        with running("Ceph RGW", command, log=log, env=environment) as starting:
            try:
                status = starting.process.wait(_START_S)
            except subprocess.TimeoutExpired:
                raise BenchError(f"Ceph RGW is not ready after {_START_S:.0f} s") from None
            if status:
                raise starting.failure()
        known = dict(line.split("=", 1) for line in log.read_text().splitlines() if "=" in line)
        pid = int((folder / "run" / "rgw.pid").read_text())
        yield Gateway(
            Served("Ceph RGW", "127.0.0.1", port, pid),
            Credentials(known["main_access_key"], known["main_secret_key"]),
            Credentials(known["alt_access_key"], known["alt_secret_key"]),
        )
    finally:
        # Run the script in a session of its own, so that a second Ctrl-C does not stop it before all is
        # removed.
        wipe = ["/bin/bash", str(SCRIPT), "wipe", str(folder)]
        subprocess.run(wipe, check=False, timeout=_START_S, start_new_session=True)


def put_objects(gateway: Gateway, pieces: Iterable[Piece]) -> None:
    """Create the bench's bucket, and put the objects of ``pieces`` into it. Raises BenchError if RGW
    refuses.
    """
    connection = http.client.HTTPConnection(*gateway.served.address, timeout=_PUT_S)
    try:
        _put(connection, gateway, f"/{BUCKET}", b"")
        for piece in pieces:
            _put(connection, gateway, piece.path, piece.body())
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"Ceph RGW took no object: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _put(
    connection: http.client.HTTPConnection, gateway: Gateway, path: str, body: bytes | memoryview
) -> None:
    fields = signature_of(
        "PUT",
        path,
        gateway.served.authority,
        payload_hash=UNSIGNED_PAYLOAD,
        credentials=gateway.main,
    )
    connection.request("PUT", path, body, dict(fields))
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise BenchError(f"Ceph RGW answers PUT {path} with {answer.status}: {said[:200]!r}")
