"""Two or three proxies as processes share hints through a real Redis or Valkey. The server fails in every
way.
"""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shadeproxy.cluster.redis_log import RedisLog
from tests.support.served import log_of, readyz, wait_for

from .owned import SECRET

COUNT = 200


@pytest.fixture
def join(serve, engine, bucket_directory):
    """Start a proxy of a cluster. Settings are given as to ``serve``."""
    for n in range(COUNT):
        (bucket_directory / "data" / f"{n:05d}").write_bytes(n.to_bytes(4, "little") * 256)

    def start(**settings):
        return serve(
            environment={"CLUSTER_SECRET": settings.pop("secret", SECRET)},
            origin__kind="file",
            origin__path=str(settings.pop("path", bucket_directory)),
            cluster__name=settings.pop("name", "c"),
            cluster__engine=engine.url,
            cluster__secret="env:CLUSTER_SECRET",
            prefetch__enabled="false",
            **settings,
        )

    return start


def cluster(proxy):
    return proxy.stats()["cluster"]


def joined(*proxies):
    for proxy in proxies:
        wait_for(lambda proxy=proxy: not cluster(proxy)["cut_off"])


def register(proxy, job="j", world_size=2):
    proxy.call("PUT", "/v1/datasets/d", {"bucket": "data", "prefix": ""})
    return json.loads(proxy.call("PUT", f"/v1/jobs/{job}", {"dataset": "d", "world_size": world_size}))


def jobs(proxy):
    return {job["job"]: job for job in proxy.get("/v1/jobs")["jobs"]}


def scores(proxy, job="j"):
    return np.frombuffer(proxy.call("GET", f"/v1/jobs/{job}/scores"), "<f4")


def put_order(proxy, ids, epoch=0, rank=0):
    proxy.call("PUT", f"/v1/jobs/j/epochs/{epoch}/order?rank={rank}", {"ids": list(ids)})


def test_hints_pins_and_purges_are_shared_and_a_joiner_gets_all(join):
    a, b = join(), join()
    joined(a, b)
    for proxy in (a, b):
        wait_for(lambda proxy=proxy: cluster(proxy)["members"] == 2)
        nodes = proxy.get("/v1/cluster")["nodes"]
        assert {node["control"] for node in nodes} == {one.control.removeprefix("http://") for one in (a, b)}
    register(a)
    assert wait_for(lambda: jobs(b).get("j"))["count"] == COUNT
    a.call("POST", "/v1/jobs/j/scores", {"ids": [3, 5], "scores": [0.5, 2]})
    assert scores(a)[5] == 2
    wait_for(lambda: scores(b)[5] == 2)
    put_order(a, range(COUNT))
    put_order(b, range(COUNT), rank=1)
    a.call("POST", "/v1/jobs/j/progress", {"epoch": 0, "rank": 0, "position": 7})
    wait_for(lambda: jobs(b)["j"]["progress"].get("0") == {"epoch": 0, "position": 7})
    b.call("POST", "/v1/pin", {"uri": "s3://data/000"})
    wait_for(lambda: [pin["uri"] for pin in a.get("/v1/pins")["pins"]] == ["s3://data/000"])
    for proxy in (a, b):
        proxy.client().get_object(Bucket="data", Key="00001")
    assert json.loads(a.call("POST", "/v1/purge", {"uri": "s3://data/"}))["pages"] == 1
    wait_for(lambda: b.stats()["tiers"]["ram"]["pages"] == 0)
    a.call("DELETE", "/v1/jobs/j/ranks/1")
    c = join()
    joined(c)
    wait_for(lambda: jobs(c).get("j"))
    wait_for(lambda: scores(c)[5] == 2)
    wait_for(lambda: [pin["uri"] for pin in c.get("/v1/pins")["pins"]] == ["s3://data/000"])
    with pytest.raises(urllib.error.HTTPError):
        c.call("PUT", "/v1/datasets/d?namespace=nobody", {"bucket": "data"})
    assert cluster(c)["refused"] == {}


def test_a_refused_call_has_the_same_answer_as_without_a_cluster(join):
    a = join()
    joined(a)
    register(a)
    for method, path, body, code in [
        ("PUT", "/v1/jobs/k", {"dataset": "nothing"}, 404),
        ("POST", "/v1/jobs/j/scores", {"ids": [COUNT], "scores": [1]}, 400),
        ("POST", "/v1/jobs/j/progress", {"epoch": 0, "rank": 2, "position": 0}, 400),
        ("DELETE", "/v1/datasets/d", None, 409),
        ("POST", "/v1/unpin", {"uri": "s3://data/x"}, 404),
    ]:
        with pytest.raises(urllib.error.HTTPError) as raised:
            a.call(method, path, body)
        assert raised.value.code == code
        assert json.loads(raised.value.read())["error"]["hint"]


class Training:
    """Training ranks in threads, one at each proxy. Each rank posts scores, progress and orders, and reads
    samples.
    """

    def __init__(self, *proxies):
        self.failures, self._done, self._steps = [], threading.Event(), [0] * len(proxies)
        self._ranks = [
            threading.Thread(target=self._train, args=(proxy, rank)) for rank, proxy in enumerate(proxies)
        ]

    def __enter__(self):
        for rank in self._ranks:
            rank.start()
        self.goes_on()
        return self

    def __exit__(self, *_):
        self._done.set()
        for rank in self._ranks:
            rank.join()

    def goes_on(self):
        """Wait until every rank has made some further steps."""
        before = list(self._steps)
        wait_for(lambda: all(now > then + 20 for now, then in zip(self._steps, before, strict=True)))

    def _train(self, proxy, rank):
        client = proxy.client()
        while not self._done.is_set():
            try:
                self._step(proxy, client, rank)
            except Exception as error:  # noqa: BLE001 - any failure is one of the training loop
                self.failures.append(repr(error))
            time.sleep(0.01)

    def _step(self, proxy, client, rank):
        n = self._steps[rank] = self._steps[rank] + 1
        sample = 2 * (n % (COUNT // 2)) + rank
        proxy.call("POST", "/v1/jobs/j/scores", {"ids": [sample], "scores": [n]}, timeout_s=5)
        proxy.call("POST", "/v1/jobs/j/progress", {"epoch": n, "rank": rank, "position": 0})
        if n % 20 == 1:
            put_order(proxy, range(COUNT), epoch=n, rank=rank)
        client.get_object(Bucket="data", Key=f"{sample:05d}")


@pytest.mark.parametrize("fault", ["kill", "stop", "flush", "restart"])
def test_a_job_goes_on_while_the_engine_fails(join, engine, fault):
    """The calls of all ranks succeed while Redis fails. At the end all proxies have the scores of
    all ranks.
    """
    a, b = join(), join()
    joined(a, b)
    register(a)
    wait_for(lambda: jobs(b).get("j"))
    with Training(a, b) as training:
        fail(engine, fault)
        if fault in {"kill", "stop"}:
            wait_for(lambda: cluster(a)["cut_off"] and cluster(b)["cut_off"])
            status, body = readyz(a)
            assert status == 200
            assert "cut off from the cluster: hints stay at this proxy" in body["warnings"]
            training.goes_on()
        repair(engine, fault)
        joined(a, b)
        training.goes_on()
    assert training.failures == []
    wait_for(lambda: same_scores(a, b))
    known = np.flatnonzero(~np.isnan(scores(b)))
    assert set((known % 2).tolist()) == {0, 1}, "scores of both ranks are on both boards"
    c = join()
    joined(c)
    wait_for(lambda: jobs(c).get("j"))
    wait_for(lambda: same_scores(a, c))


def fail(engine, fault):
    if fault == "flush":
        engine.command("FLUSHALL")
    elif fault == "stop":
        engine.stop_process()
    else:
        engine.kill()


def repair(engine, fault):
    if fault == "stop":
        engine.continue_process()
    elif fault != "flush":
        engine.start()


def same_scores(one, other):
    return np.array_equal(scores(one), scores(other), equal_nan=True)


def test_a_lying_engine_changes_nothing(join, engine):
    a, b = join(), join()
    joined(a, b)
    register(a)
    wait_for(lambda: jobs(b).get("j"))
    b.call("PUT", "/v1/jobs/k", {"dataset": "d"})
    b.call("DELETE", "/v1/jobs/k")
    wait_for(lambda: cluster(a)["applied"] == cluster(b)["applied"])

    async def lie():
        log = RedisLog(engine.url, "c")
        events = await log.read({"k": "0-0"}, 0.0)
        for event in events:
            await log.append("k", event.body)
        await log.append("k", bytes(40) + msgspec.msgpack.encode([1, "DeleteJob", "j"]))
        await log.append("s:j", events[-1].body)
        await log.close()
        return len(events)

    count = asyncio.run(lie())
    for proxy in (a, b):
        wait_for(lambda proxy=proxy: cluster(proxy)["refused"].get("repeated", 0) >= count)
        wait_for(lambda proxy=proxy: cluster(proxy)["refused"].get("sender", 0) == 2)
        assert set(jobs(proxy)) == {"j"}


def test_a_proxy_of_another_origin_or_secret_is_refused_and_works_alone(join, tmp_path):
    a = join()
    joined(a)
    register(a)
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data" / "x").write_bytes(b"x")
    for settings, reason in [
        ({"path": other}, "the cluster is of another origin"),
        ({"secret": "another one of at least sixteen"}, "not sealed with this node's cluster.secret"),
    ]:
        alone = join(**settings)
        wait_for(lambda alone=alone: log_of(alone, "this proxy shares no hints with the cluster"))
        assert any(reason in warning for warning in readyz(alone)[1]["warnings"])
        assert jobs(alone) == {}
        register(alone, "mine")
        assert set(jobs(alone)) == {"mine"}
    assert set(jobs(a)) == {"j"}


def test_two_clusters_at_one_engine_know_nothing_of_each_other(join):
    a, b = join(), join(name="d")
    joined(a, b)
    register(a)
    a.call("POST", "/v1/jobs/j/scores", {"ids": [1], "scores": [1]})
    register(b, "other")
    assert set(jobs(a)) == {"j"}
    assert set(jobs(b)) == {"other"}


def test_a_restarted_proxy_has_all_again(join):
    a, b = join(), join()
    joined(a, b)
    register(a)
    wait_for(lambda: jobs(b).get("j"))
    b.stop()
    a.call("POST", "/v1/jobs/j/scores", {"ids": [3], "scores": [4]})
    a.call("PUT", "/v1/jobs/k", {"dataset": "d"})
    b.start()
    joined(b)
    wait_for(lambda: "k" in jobs(b))
    wait_for(lambda: scores(b)[3] == 4)


@pytest.mark.new_interpreter
def test_only_a_proxy_of_a_cluster_imports_the_client_of_the_engine(serve, join, bucket_directory):
    alone = serve(origin__kind="file", origin__path=str(bucket_directory))
    assert "hiredis" not in Path(f"/proc/{alone.process.pid}/maps").read_text()
    assert "hiredis" in Path(f"/proc/{join().process.pid}/maps").read_text()
    assert "cluster" not in alone.stats()
    assert b"shadeproxy_cluster" not in alone.call("GET", "/metrics")


def test_an_announced_order_brings_hits_to_the_rank_that_reads_it(join):
    """An announced order brings hits to both ranks. The ranks draw with replacement, and each reads at its
    own proxy with room for a fifth of the data. Each proxy sees only half of the job's reads. The proxy must
    not take the missing half for reads that contradict the order.
    """
    size = 1024 + 256
    a, b = (join(cache__ram__capacity=str(COUNT // 5 * size)) for _ in range(2))
    joined(a, b)
    register(a)
    wait_for(lambda: jobs(b).get("j"))
    drawn = np.random.default_rng(3)
    hits = reads = 0
    for epoch in range(6):
        orders = [drawn.integers(0, COUNT, COUNT).tolist() for _ in (a, b)]
        for rank, (proxy, order) in enumerate(zip((a, b), orders, strict=True)):
            put_order(proxy, order, epoch, rank)
            for sample in order:
                tag = {"x-shade-job": f"j;epoch={epoch};rank={rank}"}
                request = urllib.request.Request(f"{proxy.s3}/data/{sample:05d}", headers=tag)
                with urllib.request.urlopen(request) as answer:
                    answer.read()
                    if epoch:
                        reads += 1
                        hits += answer.headers["x-shade-cache"] in {"ram", "disk"}
    for proxy in (a, b):
        assert jobs(proxy)["j"]["order"]["believed"]
        assert jobs(proxy)["j"]["order"]["missed"] < COUNT // 4
    assert hits / reads > 0.4, "0.2 is the share that fits"
