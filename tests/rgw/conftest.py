"""A real S3 server for tests that need one: Ceph RGW on a free loopback port, in a temporary directory."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("start_radosgw.sh")
_INSTALL = (
    "these tests were asked for with -m rgw but radosgw is not installed: "
    "apt-get install -y --no-install-recommends radosgw ceph-mon ceph-osd ceph-base ceph-common"
)


@dataclass(frozen=True)
class Rgw:
    """A running gateway with two accounts."""

    endpoint: str
    main: tuple[str, str]
    alt: tuple[str, str]


@pytest.fixture(scope="session")
def rgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rgw]:
    """Ceph RGW, started once a session (about 12 s)."""
    if shutil.which("radosgw") is None:
        pytest.fail(_INSTALL)
    yield from run_rgw(tmp_path_factory.mktemp("rgw"))


def run_rgw(folder: Path, *, store_gib: int = 2, settings: str = "") -> Iterator[Rgw]:
    """``settings``: lines for the gateway's section of ceph.conf."""
    port = _free_port()
    environment = {**os.environ, "MON_PORT": str(_free_port(also_next=True)), "RGW_STORE_GB": str(store_gib)}
    environment["RGW_EXTRA"] = settings
    # Output to a file: the daemons inherit it, and a pipe would never see its end.
    log = folder / "start.log"
    with log.open("w") as output:
        started = subprocess.run(
            ["bash", str(_SCRIPT), "start", str(folder / "cluster"), str(port)],
            stdout=output, stderr=subprocess.STDOUT, env=environment, check=False, timeout=110,
        )  # fmt: skip
    try:
        if started.returncode != 0:
            pytest.fail(f"radosgw did not start:\n{log.read_text()[-2000:]}")
        known = dict(line.split("=", 1) for line in log.read_text().splitlines() if "=" in line)
        yield Rgw(
            known["endpoint"],
            (known["main_access_key"], known["main_secret_key"]),
            (known["alt_access_key"], known["alt_secret_key"]),
        )
    finally:
        subprocess.run(["bash", str(_SCRIPT), "wipe", str(folder / "cluster")], check=False, timeout=110)


def _free_port(*, also_next: bool = False) -> int:
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                if also_next:
                    second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
