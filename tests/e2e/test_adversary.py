"""A job that sends false orders and scores, beside an honest job, on the running proxy."""

import json
from pathlib import Path

import numpy as np
import pytest
import urllib3

SIZE, COUNT, EPOCHS = 8_000, 320, 3
HONEST, OTHER = range(COUNT), range(COUNT, 2 * COUNT)
IDS = "application/octet-stream"
SCORES = "application/vnd.shadeproxy.scores"


class Jobs:
    """Two jobs, each with a dataset of its own, that read in turn through one proxy."""

    def __init__(self, proxy) -> None:
        self.proxy = proxy
        self.pool = urllib3.PoolManager()
        self.random = np.random.default_rng(11)

    def call(self, method: str, path: str, body: bytes, kind: str = "application/json") -> tuple[int, dict]:
        answer = self.pool.request(
            method, f"{self.proxy.control}/v1/{path}", body=body or None, headers={"Content-Type": kind}
        )
        return answer.status, json.loads(answer.data or b"{}")

    def register(self) -> None:
        for name, numbers in (("honest", HONEST), ("other", OTHER)):
            lines = b"\n".join(b'{"bucket": "data", "key": "%05d"}' % number for number in numbers)
            assert self.call("PUT", f"datasets/{name}", lines, "application/jsonl")[0] < 300
            assert self.call("PUT", f"jobs/{name}", json.dumps({"dataset": name}).encode())[0] < 300

    def announce(self, job: str, epoch: int, order: np.ndarray) -> None:
        path = f"jobs/{job}/epochs/{epoch}/order?rank=0"
        assert self.call("PUT", path, order.astype("<u4").tobytes(), IDS)[0] == 200

    def read(self, job: str, epoch: int, number: int) -> bool:
        """Read a sample; return whether it was a hit."""
        answer = self.pool.request(
            "GET",
            f"{self.proxy.s3}/data/{number:05d}",
            headers={"x-shade-job": f"{job};epoch={epoch};rank=0"},
        )
        assert answer.data[:4] == number.to_bytes(4, "little")
        return answer.headers["x-shade-cache"] in {"ram", "disk"}

    def train(self, told=None) -> tuple[float, float]:
        """Return the hit ratios of both jobs from the second epoch on. ``told`` is a function that sends the
        other job's hints, called before the reads of each place. With None the other job sends true hints, as
        the honest job does.
        """
        orders = [[self.random.permutation(COUNT) for _ in range(EPOCHS)] for _ in range(2)]
        hits = np.zeros((2, EPOCHS, COUNT))
        for epoch in range(EPOCHS):
            for coming in range(epoch and epoch + 1, min(epoch + 2, EPOCHS)):
                self.announce("honest", coming, orders[0][coming])
                if told is None:
                    self.announce("other", coming, orders[1][coming])
            for place in range(COUNT):
                if told is not None:
                    told(epoch, place)
                hits[0, epoch, place] = self.read("honest", epoch, HONEST[orders[0][epoch][place]])
                hits[1, epoch, place] = self.read("other", epoch, OTHER[orders[1][epoch][place]])
        honest, other = hits[:, 1:].mean(axis=(1, 2))
        return float(honest), float(other)


@pytest.fixture
def make_jobs(serve, bucket_directory: Path):
    for number in range(2 * COUNT):
        (bucket_directory / "data" / f"{number:05d}").write_bytes(number.to_bytes(4, "little") * (SIZE // 4))

    def make() -> Jobs:
        jobs = Jobs(
            serve(
                origin__kind="file",
                origin__path=str(bucket_directory),
                cache__ram__capacity=str(2 * COUNT // 5 * (SIZE + 256)),
                prefetch__enabled="false",
            )
        )
        jobs.register()
        return jobs

    return make


def scored(ids: np.ndarray, scores: np.ndarray) -> bytes:
    return len(ids).to_bytes(4, "little") + ids.astype("<u4").tobytes() + scores.astype("<f4").tobytes()


@pytest.mark.timeout(300)
def test_lies_cost_their_own_job_and_nobody_else(make_jobs):
    """False hints harm only the job that sends them. The honest job has no fewer hits than beside another
    honest job. The job with false hints has fewer hits.
    """
    share, others_share = make_jobs().train()
    jobs = make_jobs()
    ids, random = np.arange(COUNT), np.random.default_rng(5)
    refused, believed = [], {"honest": [], "other": []}

    def lie(epoch: int, place: int) -> None:
        if place % 40 == 0:
            for job, order in jobs.call("GET", "stats", b"")[1]["orders"].items():
                believed[job].append(order["believed"])
            for bad in (np.nan, np.inf, -np.inf, -1.0):
                scores = np.where(ids == place, bad, 1.0)
                refused.append(jobs.call("POST", "jobs/other/scores", scored(ids, scores), SCORES)[0])
            # Post huge scores, and swap high and low ones each time.
            huge = np.where((ids + place // 40) % 2, 3e38, 0.0)
            assert jobs.call("POST", "jobs/other/scores", scored(ids, huge), SCORES)[0] == 200
        if place == 0:
            # Announce every sample six times an epoch, so that every page seems to be due soon. The job's
            # reads do not follow this order.
            for coming in (epoch, epoch + 1):
                jobs.announce("other", coming, np.concatenate([random.permutation(COUNT) for _ in range(6)]))
            beyond = np.array([COUNT, 1 << 31])
            path = f"jobs/other/epochs/{epoch}/order?rank=0"
            refused.append(jobs.call("PUT", path, beyond.astype("<u4").tobytes(), IDS)[0])

    honest, liar = jobs.train(lie)
    assert set(refused) == {400}
    assert all(believed["honest"])
    # Check belief only where the job's first reads have shown the lie. Later some false announcements may
    # come true by chance.
    later = believed["other"][COUNT // 40 :]
    assert sum(later) <= 0.5 * len(later), "the stats say that it fell back"
    assert honest >= share - 0.02
    assert liar < others_share
