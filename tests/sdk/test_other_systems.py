"""The SDK without the system calls that Windows and macOS lack: it reads through a real proxy."""

import subprocess
import sys

import pytest

WITHOUT_LINUX = """
import os, socket, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "sched_setaffinity", "register_at_fork", "preadv", "pread", "memfd_create",
             "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "fork"):
    delattr(os, name)
del socket.AF_UNIX
"""
READ = """
import shadeproxy_sdk as shade

client = shade.Client(sys.argv[1])
data = client.manifest(bucket="data")
job = client.job("j", dataset=data)
for _ in range(2):
    bodies = client.read_many(data, range(len(data)))
    assert [bytes(body) for body in bodies] == [b"%d" % n * 5_000 for n in range(len(data))]
job.report([0, 1], [0.5, 2.0])
assert job.flush()
print(len(data), "read")
"""


@pytest.fixture
def buckets(tmp_path):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    for n in range(8):
        (tmp_path / "buckets" / "data" / str(n)).write_bytes(b"%d" % n * 5_000)
    return tmp_path / "buckets"


def test_it_reads_batches_without_files_of_the_cache(serve, buckets):
    proxy = serve(origin__kind="file", origin__path=str(buckets))
    command = [sys.executable, "-c", WITHOUT_LINUX + READ, proxy.control]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "8 read\n"), ended.stderr
    assert not ended.stderr
    assert proxy.stats()["totals"]["hits_ram"] == 8
