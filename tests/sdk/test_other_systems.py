"""The SDK without the system calls that Windows and macOS lack. It reads through a real proxy, also in the
workers of a DataLoader.
"""

import subprocess
import sys

import pytest

# torch and urllib3 are built for this system, so they are imported first. Only the SDK sees the other system.
PROGRAM = """
import os, socket, sys
import torch.utils.data, urllib3
{other_system}

# Where another system runs the SDK, its proxy is elsewhere or in a container, and so are the cache's files.
FILES = ("/dev/shm", "/proc", sys.argv[2])
def refuse(event, values):
    if event == "open" and str(values[0]).startswith(FILES):
        raise FileNotFoundError(2, "No such file or directory", values[0])
sys.addaudithook(refuse)

import shadeproxy_sdk as shade

if __name__ == "__main__":
    client = shade.Client(sys.argv[1])
    data = shade.S3Dataset(client, bucket="data")
    job = client.job("j", dataset=data.manifest)
    expected = [b"%d" % n * 5_000 for n in range(8)]
    for _ in range(2):
        bodies = client.read_many(data.manifest, range(8))
        assert [bytes(body) for body in bodies] == expected
    sampler = shade.ShadeSampler(job, batch_size=4)
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, sampler=sampler, collate_fn=list, num_workers=1, multiprocessing_context="spawn",
        timeout=60,
    )
    seen = {{id: bytes(body) for batch in job.timed(loader) for body, id in batch}}
    assert [seen[id] for id in sorted(seen)] == expected, seen
    job.report([0, 1], [0.5, 2.0])
    assert job.flush()
    job.close()
    print("read")
"""
WINDOWS = """
import multiprocessing.heap
multiprocessing.heap.Arena._dir_candidates = []
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "sched_setaffinity", "register_at_fork", "preadv", "pread", "memfd_create",
             "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "fork"):
    delattr(os, name)
del socket.AF_UNIX
"""
MACOS = """
sys.platform = "darwin"
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "O_DIRECT"):
    delattr(os, name)
"""


@pytest.fixture
def buckets(tmp_path):
    (tmp_path / "buckets" / "data").mkdir(parents=True)
    for n in range(8):
        (tmp_path / "buckets" / "data" / str(n)).write_bytes(b"%d" % n * 5_000)
    return tmp_path / "buckets"


@pytest.mark.parametrize(
    ("other_system", "tried"),
    [
        pytest.param(WINDOWS, 0, id="windows"),
        # On macOS the SDK could read files. So each process asks for the place of one sample, and finds that
        # the file is not there.
        pytest.param(MACOS, 2, id="macos"),
    ],
)
def test_it_reads_without_files_of_the_cache(serve, buckets, tmp_path, other_system, tried):
    program, cache = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(PROGRAM.format(other_system=other_system))
    proxy = serve(origin__kind="file", origin__path=str(buckets), cache__ram__path=str(cache))
    command = [sys.executable, str(program), proxy.control, str(cache)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr
    assert not ended.stderr
    assert proxy.stats()["totals"]["hits_ram"] == 16 + tried
