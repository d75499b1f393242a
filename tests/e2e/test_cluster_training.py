"""Four ranks train together (DistributedDataParallel, gloo), each through a proxy of its own. The proxies
share their pages. The test kills one proxy in the middle of an epoch.
"""

import json
import os
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from tests.support.copied import TRAINING, original
from tests.support.redis_server import redis_server
from tests.support.served import wait_for

from .cluster_rank import BATCH_SIZE, EPOCHS, GO_ON, PAUSED, body_of
from .owned import SECRET, settled

RANKS = 4
SAMPLES = RANKS * BATCH_SIZE * 10
KEYS = [f"{number:03d}" for number in range(SAMPLES)]
KILLED = 2
RANK = Path(__file__).with_name("cluster_rank.py")
OWNED = """
[cluster]
name = "c"
pages = "owned"
secret = "env:CLUSTER_SECRET"
listen = "127.0.0.1:0"
lease = "1 s"

[[rules]]
bucket = "*"
freshness = "immutable"
"""


def free_address():
    """Return a free address for a proxy. The proxy gets the same address after its restart, because the ranks
    know no other one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="module")
def proxies(serve_for_module, tmp_path_factory):
    """Start a cluster with one proxy for each rank. Together the proxies have room for the whole dataset."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "buckets" / "train").mkdir(parents=True)
    for key in KEYS:
        (folder / "buckets" / "train" / key).write_bytes(body_of(key))
    config = folder / "member.toml"
    config.write_text(OWNED)
    with redis_server(folder) as engine:
        started = [
            serve_for_module(
                config,
                environment={"CLUSTER_SECRET": SECRET},
                origin__kind="file",
                origin__path=str(folder / "buckets"),
                cluster__engine=engine.url,
                s3__listen=free_address(),
                control__listen=free_address(),
            )
            for _ in range(RANKS)
        ]
        settled(*started)
        yield started


class Training:
    """The ranks of the training, each a process with a proxy of its own. ``pause`` is the step after which
    rank KILLED waits for ``go_on``.
    """

    def __init__(self, proxies, directory, mode, *, pause):
        self._directory = directory
        self._ranks = []
        for rank, proxy in enumerate(proxies):
            command = [str(RANK), "--rank", str(rank), "--world-size", str(RANKS)]
            command += ["--control", proxy.control, "--mode", mode, "--directory", str(directory)]
            command += ["--pause", pause if rank == KILLED else ""]
            with (directory / f"log{rank}").open("wb") as log:
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                streams = {"stdout": log.fileno(), "stderr": log.fileno()}
                self._ranks.append(original(TRAINING).start(command, **streams, environment=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self._ranks:
            rank.kill()
            rank.wait()

    def wait_until_paused(self):
        paused = self._directory / f"rank{KILLED}" / PAUSED
        wait_for(lambda: paused.exists() or any(rank.poll() for rank in self._ranks), 60)
        assert paused.exists(), self._logs()

    def go_on(self):
        (self._directory / f"rank{KILLED}" / GO_ON).touch()

    def ends(self):
        """Wait until all ranks have ended. Return the results that each rank has written."""
        codes = [rank.wait(60) for rank in self._ranks]
        assert codes == [0] * RANKS, "\n".join(self._logs())
        return [
            json.loads((self._directory / f"rank{rank}" / "end.json").read_text()) for rank in range(RANKS)
        ]

    def _logs(self):
        return [log.read_text() for log in sorted(self._directory.glob("log*"))]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_ranks_train_one_epoch_together_while_a_proxy_is_killed_and_comes_back(proxies, tmp_path, mode):
    """The ranks complete one epoch although a proxy is killed and comes back. ``mode`` is also the name of
    the job.
    """
    with Training(proxies, tmp_path, mode, pause="1:4") as training:
        training.wait_until_paused()
        proxies[KILLED].stop(signal.SIGKILL)
        training.go_on()
        time.sleep(0.5)  # In this time the rank continues to read, and its proxy does not answer.
        proxies[KILLED].start()
        ends = training.ends()
    settled(*proxies)

    assert {end["job"] for end in ends} == {mode}
    assert all(end["parameters"] == ends[0]["parameters"] for end in ends)
    assert [all_ids(end["steps"]) for end in ends] == [end["announced"] for end in ends]
    for epoch in range(EPOCHS):
        assert_exact(epoch, mode, [end["announced"][epoch] for end in ends], ends)
    assert len({end["frozen"] for end in ends}) == 1, "one column is frozen for all ranks"
    assert_one_board(proxies, mode, ends)
    assert {key: found for key in KEYS if len(found := holders(proxies, key)) > 1} == {}
    pages = [proxy.stats()["tiers"]["ram"]["pages"] for proxy in proxies]
    assert SAMPLES / 2 < sum(pages) <= SAMPLES, f"{pages}: an object is cached twice"


def holders(proxies, key):
    """Return the numbers of the proxies whose cache has the object."""
    return [number for number, proxy in enumerate(proxies) if has_cached(proxy, key)]


def has_cached(proxy, key):
    try:
        return bool(proxy.get(f"/v1/objects/train/{key}")["pages"])
    except HTTPError as error:
        if error.code == 404:
            return False
        raise


def all_ids(steps):
    return [[sample for batch in epoch for sample in batch] for epoch in steps]


def assert_exact(epoch, mode, parts, ends):
    """Assert that all ranks draw the same epoch, and that each rank trains its own part of it."""
    assert {tuple(end["corrections"][epoch]) for end in ends} == {tuple(ends[0]["corrections"][epoch])}
    if mode == "uniform" or epoch == 0:
        assert sorted(sample for part in parts for sample in part) == list(range(SAMPLES))
    else:
        drawn = ends[0]["draws"][epoch]
        assert [end["draws"][epoch] for end in ends] == [drawn] * RANKS
        assert parts == [drawn[rank::RANKS] for rank in range(RANKS)]
        assert len(set(drawn)) < SAMPLES, "drawn with replacement"


def assert_one_board(proxies, job, ends):
    """Assert that all proxies soon have the same scores. A sample that only one rank read in the last epoch
    must have the score that this rank reported.
    """

    def read():
        columns = [proxy.call("GET", f"/v1/jobs/{job}/scores") for proxy in proxies]
        return [np.frombuffer(column, "<f4") for column in columns]

    wait_for(lambda: len({board.tobytes() for board in read()}) == 1, 20)
    boards = read()
    assert np.isfinite(boards[0]).mean() > 0.9, "a killed proxy takes its last quarter of a second with it"
    readers = Counter(sample for end in ends for sample in set(end["announced"][-1]))
    # The killed proxy did not take some scores. They are delivered later, and may then replace newer scores
    # of their samples.
    late = {sample for order in ends[KILLED]["announced"][:-1] for sample in order}
    for rank, end in enumerate(ends):
        alone = {sample for sample in end["announced"][-1] if readers[sample] == 1}
        chosen = sorted(alone if rank == KILLED else alone - late)
        assert chosen
        assert boards[0][chosen].tolist() == np.array(end["scores"], np.float32)[chosen].tolist()
