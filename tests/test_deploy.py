"""The image and the systemd unit: the files that they take from the tree exist, and neither runs with more
rights than it needs.
"""

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
UNIT = ROOT / "docker" / "systemd" / "shadeproxy.service"


def copied():
    """Return the files and directories of the tree that the image is built from."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [name.removeprefix("./") for line in lines for name in line.split()[:-1]]


def test_the_image_is_built_from_files_that_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "all is ignored but what is named"
    names = copied()
    assert {"pyproject.toml", "shadeproxy", "requirements.lock", "docker/config.toml"} <= set(names)
    for name in names:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, line[1:]) for line in ignored if line.startswith("!")), name


def test_the_image_runs_as_a_number_that_is_not_root_with_the_locked_versions():
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["1000:1000"]
    assert "--constraint /tmp/requirements.lock" in DOCKERFILE
    assert "SHADEPROXY_CONFIG=/etc/shadeproxy/config.toml" in DOCKERFILE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_hardened():
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(UNIT)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-300:] + ended.stderr


def test_the_unit_keeps_the_ram_tier_over_a_restart():
    assert "RemoveIPC=no" in UNIT.read_text().splitlines()
    assert "ReadWritePaths=/dev/shm" in UNIT.read_text().splitlines()
