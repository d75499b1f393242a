"""A start under a too small limit of address space ends with one line that says what to change."""

import resource
import subprocess
import sys

import pytest

from shadeproxy.app.address_space import no_memory
from shadeproxy.app.fitting import judge_address_space
from shadeproxy.config import Settings

MIB = 1024**2


@pytest.mark.parametrize("limit_bytes", [100 * MIB, 300 * MIB, 680 * MIB])
def test_a_start_says_that_the_limit_is_too_small(tmp_path, limit_bytes):
    values = {
        "s3.listen": "127.0.0.1:0",
        "control.listen": "127.0.0.1:0",
        "origin.kind": "file",
        "origin.path": tmp_path,
        "cache.ram.path": tmp_path / "ram",
        "cache.ram.capacity": "64 MiB",
        "cache.disk.capacity": "0",
        "cache.inflight": "64 MiB",
        "state.path": tmp_path / "state",
    }
    command = [sys.executable, "-m", "shadeproxy", "serve", "--config", "/dev/null"]
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    ended = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
    )
    assert ended.returncode
    assert "Traceback" not in ended.stderr
    assert f"ulimit -v allows {limit_bytes // MIB}" in ended.stderr
    assert "remove the limit: ulimit -v unlimited" in ended.stderr


def test_all_tiers_are_mapped_and_count():
    settings = Settings.load(
        None, ["cache.ram.capacity=1 GiB", "cache.disk.capacity=8 GiB", "cache.inflight=256 MiB"]
    )
    needed_bytes = (9 * 1024 + 256 + 512) * MIB
    assert judge_address_space(settings, needed_bytes).possible
    assert judge_address_space(settings, resource.RLIM_INFINITY).possible
    verdict = judge_address_space(settings, needed_bytes - 1)
    assert not verdict.possible
    assert "LimitAS=infinity" in verdict.remedy


def test_without_a_limit_the_kernel_is_named():
    assert "vm.overcommit_memory" in str(no_memory())
