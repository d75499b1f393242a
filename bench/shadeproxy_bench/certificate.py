"""A certificate for 127.0.0.1, valid for a day, made for one measurement by the openssl program."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from shadeproxy_bench.faults import ReferenceMissing


class Certificate(NamedTuple):
    """PEM files of a certificate, which is its own authority, and of its key."""

    cert: Path
    key: Path


def make_certificate(work: Path) -> Certificate:
    """Write a certificate and its key into ``work``. Raises ReferenceMissing where openssl is not
    installed.
    """
    program = shutil.which("openssl")
    if program is None:
        raise ReferenceMissing("openssl is not installed; on Debian and Ubuntu: apt-get install openssl")
    made = Certificate(work / "loopback.crt", work / "loopback.key")
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "1"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(made.cert), "-keyout", str(made.key)]
    subprocess.run([program, *kind, *named, *files], check=True, capture_output=True)
    return made
