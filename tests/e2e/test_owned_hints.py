"""Hints of real length at proxies as processes, with a real Redis or Valkey, in a cluster where each object
has one owner: a manifest, orders and scores of 70,000 samples.
"""

import json
import urllib.request

import numpy as np

from tests.support.served import opened, wait_for

from .owned import cluster, settled

COUNT = 70_000
SCORES, IDS = "application/vnd.shadeproxy.scores", "application/vnd.shadeproxy.ids"


def send(proxy, method, path, body, kind):
    request = urllib.request.Request(proxy.control + path, data=body, method=method)
    request.add_header("Content-Type", kind)
    with opened(request, timeout_s=30) as answer:
        return answer.read()


def register(proxy):
    keys = np.random.default_rng(1).bytes(8 * COUNT).hex()
    lines = "".join(
        f'{{"bucket":"data","key":"{keys[at : at + 16]}"}}\n' for at in range(0, len(keys), 16)
    ).encode()
    send(proxy, "PUT", "/v1/datasets/d", lines, "application/x-ndjson")
    return json.loads(proxy.call("PUT", "/v1/jobs/j", {"dataset": "d", "world_size": 1}))["digest"]


def train(proxy, epoch):
    """Announce an epoch, and give all samples the number of the epoch as their score."""
    ids = np.random.default_rng(epoch).permutation(COUNT).astype("<u4").tobytes()
    send(proxy, "PUT", f"/v1/jobs/j/epochs/{epoch}/order", ids, IDS)
    scores = np.full(COUNT, epoch, "<f4").tobytes()
    send(proxy, "POST", "/v1/jobs/j/scores", COUNT.to_bytes(4, "little") + ids + scores, SCORES)


def have(proxies, digest, *epochs):
    """Return whether the proxies have the manifest, the scores of the last epoch, and the orders of all
    epochs.
    """
    jobs = [{job["job"]: job for job in proxy.get("/v1/jobs")["jobs"]}.get("j") for proxy in proxies]
    if not all(job and job["digest"] == digest for job in jobs):
        return False
    for proxy in proxies:
        scores = np.frombuffer(proxy.call("GET", "/v1/jobs/j/scores"), "<f4")
        if len(scores) != COUNT or not (scores == epochs[-1]).all():
            return False
    orders = [job["order"]["epochs"] if job["order"] else {} for job in jobs]
    return orders == [{str(epoch): COUNT for epoch in epochs}] * len(jobs)


def test_long_hints_stay_at_all_proxies_whatever_happens(join, engine):
    a, b, c = proxies = [join() for _ in range(3)]
    settled(*proxies)
    digest = register(a)
    train(a, 0)
    wait_for(lambda: have(proxies, digest, 0))

    c.call("POST", "/v1/cluster/drain", {"drain": True})
    settled(*proxies)
    train(c, 1)
    wait_for(lambda: have((a, b), digest, 0, 1))
    c.call("POST", "/v1/cluster/drain", {"drain": False})
    wait_for(lambda: have(proxies, digest, 0, 1))

    engine.command("FLUSHALL")
    train(b, 2)
    settled(*proxies)
    wait_for(lambda: have(proxies, digest, 0, 1, 2))

    engine.kill()
    wait_for(lambda: a.stats()["cluster"]["cut_off"])
    train(a, 3)
    engine.start()
    settled(*proxies)
    wait_for(lambda: have(proxies, digest, 0, 1, 2, 3))

    node = cluster(c)["node"]
    c.stop()
    a.call("POST", "/v1/cluster/forget", {"node": node})
    settled(a, b)
    train(b, 4)
    c.start()
    settled(*proxies)
    wait_for(lambda: have(proxies, digest, 0, 1, 2, 3, 4))

    fourth = join()
    settled(*proxies, fourth)
    wait_for(lambda: have([*proxies, fourth], digest, 0, 1, 2, 3, 4))
