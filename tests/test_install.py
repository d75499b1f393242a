"""The installation from packages that README describes, up to the first cached byte.

Another user makes it, in a clean environment.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.support.compiler import write_quick_compiler
from tests.support.served import Served, log_of, wait_for

ROOT = Path(__file__).parent.parent
PYTHON = Path(sys._base_executable)
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
NOBODY = 65534
BODY = b"first byte" * 1000
BUILD = """
import sys
from hatchling.builders.wheel import WheelBuilder
print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""
READ = """
import sys
import shadeproxy_sdk as shade
client = shade.Client(sys.argv[1])
data = client.manifest(bucket="data")
print(bytes(client.read_many(data, [0])[0]) == b"first byte" * 1000)
"""


class User:
    """The user that installs: another user if the tests run as root, else the user of the tests.

    The user has a home directory, and nothing of the environment of the tests.
    """

    def __init__(self, home):
        self.home, self.id = home, os.geteuid()
        kept = {name: value for name, value in os.environ.items() if re.match("PIP_|SSL_|https?_proxy", name)}
        clean = {"HOME": str(home), "PATH": f"{PYTHON.parent}:/usr/bin:/bin", "LANG": "C.UTF-8"} | kept
        clean |= {"PIP_NO_COMPILE": "1", "PIP_NO_CACHE_DIR": "1"}  # Without these, pip takes longer.
        self.prefix = ["env", "-i", *(f"{name}={value}" for name, value in clean.items())]
        if os.geteuid() == 0 and shutil.which("setpriv"):
            user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            # If Python is installed in root's home, no other user can run it.
            if not subprocess.run([*user, PYTHON, "-c", ""], capture_output=True, check=False).returncode:
                self.prefix = [*user, *self.prefix]
                os.chown(home, NOBODY, NOBODY)
                self.id = NOBODY

    def run(self, *command):
        """Run a command in the home directory. Return the text that it prints, and its exit status."""
        ended = subprocess.run(
            [*self.prefix, *command], cwd=self.home, capture_output=True, text=True, check=False
        )
        return ended.stdout + ended.stderr, ended.returncode


@pytest.fixture
def user():
    # pytest's own directories are no use: only their owner can enter them.
    home = Path(tempfile.mkdtemp())
    yield User(home)
    shutil.rmtree(home)


def build(out, tools):
    """Build the wheels that ``make dist`` builds, two of the proxy and one of the SDK, but do not check or
    optimise them. ``tools``: a directory for the compiler.
    """
    environment = {"CC": write_quick_compiler(COMPILER, tools)} if COMPILER else {}
    for project, pure in ((ROOT, "0"), (ROOT, "1"), (ROOT / "sdk", "1")):
        command = [sys.executable, "-c", BUILD, str(project), str(out)]
        subprocess.run(
            command,
            capture_output=True,
            check=True,
            env=os.environ | environment | {"SHADEPROXY_PURE": pure},
            cwd=out,
        )
    out.chmod(0o755)
    for wheel in out.iterdir():
        wheel.chmod(0o644)


def commands():
    """Return the commands in README's section about the installation."""
    section = (ROOT / "README.md").read_text().split("## Install on other machines\n")[1].split("\n## ")[0]
    return re.findall(r"^\$ (.*)$", section, re.MULTILINE)


@pytest.mark.slow
def test_a_user_comes_from_the_packages_to_the_first_cached_byte(user, tmp_path):
    (user.home / "dist").mkdir()
    build(user.home / "dist", tmp_path)
    wheels = list((user.home / "dist").glob("shadeproxy-*.whl"))
    make, *rest = commands()
    assert make.startswith("make dist ")
    assert len(rest) == 3
    for number, command in enumerate(rest):
        if number == 2 and user.run("shadeproxy/bin/pip", "download", "--no-deps", "xxhash")[1]:
            pytest.skip("no package index")
        said, status = user.run("bash", "-c", command)
        assert status == 0, said
    if len(wheels) == 2:
        said, status = user.run("bash", "-c", "shadeproxy/bin/pip install --no-index dist/shadeproxy-*.whl")
        assert status == 1, said

    (user.home / "buckets" / "data").mkdir(parents=True)
    (user.home / "buckets" / "data" / "key").write_bytes(BODY)
    program = str(user.home / "shadeproxy" / "bin" / "shadeproxy")
    said, status = user.run(program, "init", "buckets")
    assert status == 0, said
    settings = [
        "s3.listen=127.0.0.1:0",
        "control.listen=127.0.0.1:0",
        f"cache.ram.path={user.home}/ram",
        "cache.ram.capacity=64 MiB",
        "telemetry.log_format=json",
    ]
    arguments = ["--config", str(user.home / "shadeproxy.toml")]
    arguments += [item for one in settings for item in ("--set", one)]
    served = Served(arguments, {}, user.home / "log", program=(*user.prefix, program))
    served.start()
    try:
        assert (user.home / "ram").stat().st_uid == user.id
        assert log_of(served, "ready")[0]["lane"] == ("compiled" if len(wheels) == 2 else "interpreted")

        def read():
            with urllib.request.urlopen(f"{served.s3}/data/key", timeout=30) as answer:
                assert answer.read() == BODY
                return answer.headers["x-shade-cache"]

        assert read() == "origin"
        wait_for(lambda: read() == "ram")  # The page is stored soon after it is sent.
        python = str(user.home / "shadeproxy" / "bin" / "python")
        assert user.run(python, "-c", READ, served.control) == ("True\n", 0)
    finally:
        served.stop()
