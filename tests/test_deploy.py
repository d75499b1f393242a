"""The image and the systemd unit: the files that they take from the tree exist, and they give no rights that
the proxy does not need.
"""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError

import pytest
from botocore.exceptions import ClientError

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
CONFIG = ROOT / "docker" / "config.toml"
SECRETS = ("TRAINER_SECRET", "CONTROL_TOKEN")
UNIT = ROOT / "docker" / "systemd" / "shadeproxy.service"


def copied():
    """Return those files and directories of the tree that the image contains."""
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


def test_the_labels_name_a_vendor_and_addresses_only_if_the_build_is_told_them():
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', last_stage))
    untold = re.findall(r"^ARG (\w+)$", last_stage, re.MULTILINE)
    assert untold == ["VENDOR", "SOURCE", "URL"]
    assert [labels[name.lower()] for name in untold] == [f"${{{name}}}" for name in untold]
    assert not [value for value in labels.values() if "/" in value]


def test_the_linter_of_dockerfiles_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint, "--failure-threshold", "style", ROOT / "docker" / "Dockerfile"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("CONTROL_TOKEN",), "auth.clients trainer: the environment variable TRAINER_SECRET is not set"),
        (("TRAINER_SECRET",), "control.token: the environment variable CONTROL_TOKEN is not set"),
    ],
)
def test_the_image_does_not_start_without_its_secrets_and_names_the_missing_one(tmp_path, given, missing):
    environment = {name: text for name, text in os.environ.items() if name not in SECRETS}
    environment |= dict.fromkeys(given, "s3cr3t") | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "shadeproxy", "serve", "--config", CONFIG]
    # The tiers are so small that they fit on any machine, so only a missing secret can stop the start.
    command += ["--set", f"cache.ram.path={tmp_path / 'ram'}", "--set", "cache.ram.capacity=64 MiB"]
    command += ["--set", "cache.disk.capacity=64 MiB"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert missing in ended.stderr
    assert "s3cr3t" not in ended.stderr


def test_with_its_secrets_the_image_starts_and_asks_for_keys_and_token(serve):
    image = serve(CONFIG, dict.fromkeys(SECRETS, "s3cr3t"), cache__ram__capacity="64 MiB",
                  cache__disk__capacity="64 MiB")  # fmt: skip
    with pytest.raises(ClientError, match="AccessDenied"):
        image.client().list_buckets()
    with pytest.raises(HTTPError, match="401"):
        image.stats()
    image.token = "s3cr3t"
    assert image.stats()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_hardened():
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(UNIT)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-300:] + ended.stderr


def test_the_unit_keeps_the_ram_tier_over_a_restart():
    assert "RemoveIPC=no" in UNIT.read_text().splitlines()
    assert "ReadWritePaths=/dev/shm" in UNIT.read_text().splitlines()
