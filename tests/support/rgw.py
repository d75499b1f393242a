"""A real S3 server for tests that need one: Ceph RGW, on a free port of loopback, in a temporary
directory.
"""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shadeproxy_bench import rgw as ceph

SIGNED_ONLY = """
[origin.credentials]
access_key_env = "ORIGIN_KEY"
secret_key_env = "ORIGIN_SECRET"
[auth]
anonymous = false
"""
"""The beginning of a configuration of the proxy: it uses the gateway's main account at the origin, and
clients must sign.
"""


@dataclass(frozen=True)
class Rgw:
    """A running gateway with two accounts."""

    endpoint: str
    main: tuple[str, str]
    alt: tuple[str, str]
    config: Path

    @property
    def secrets(self) -> dict[str, str]:
        """Return the environment variables that SIGNED_ONLY names, with the keys of the main account."""
        return {"ORIGIN_KEY": self.main[0], "ORIGIN_SECRET": self.main[1]}

    def add_tenant(self, name: str) -> tuple[str, str]:
        """Make a user in a new tenant, which has bucket names of its own. Return the user's keys."""
        access_key, secret_key = f"KEY{name.upper()}", f"secret-of-{name}"
        command = ["radosgw-admin", "-c", str(self.config), "-n", "client.rgw", "user", "create"]
        command += ["--tenant", name, "--uid", name, "--display-name", name]
        command += ["--access-key", access_key, "--secret", secret_key]
        made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stderr
        return access_key, secret_key


def run_rgw(folder: Path, *, store_gib: int = 2, settings: str = "") -> Iterator[Rgw]:
    """Run Ceph RGW until the block ends. ``settings``: lines for the gateway's section of ceph.conf."""
    running = ceph.rgw(folder, store_gib=store_gib, settings=settings)
    # RGW is started in a thread, because the first test that uses it may run an event loop. No code of
    # shadeproxy may block that loop.
    with ThreadPoolExecutor(1) as thread:
        gateway = thread.submit(running.__enter__).result()
        try:
            main, alt = ((account.access_key, account.secret_key) for account in (gateway.main, gateway.alt))
            yield Rgw(gateway.served.url, main, alt, folder / "cluster" / "ceph.conf")
        finally:
            thread.submit(running.__exit__, None, None, None).result()
