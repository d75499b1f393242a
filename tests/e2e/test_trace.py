"""``[telemetry] trace``: the recording of a proxy, given to ``shadeproxy simulate``, yields what the proxy
did.
"""

import json
import os
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from shadeproxy.simulate.trace_file import load_trace
from shadeproxy.telemetry.recording import SOURCES

COUNT, SIZE, EPOCHS = 50, 20_000, 4
RECORD_BYTES = 20_992  # The approximate length of a record; the cache has room for ten.


def drifting(drawn) -> list[int]:
    """Return reads in which neighbouring reads are of few objects. LRU hits often in this order. It would not
    in another order.
    """
    return [(at // 2 + int(step)) % COUNT for at, step in enumerate(drawn.integers(0, 12, 2 * COUNT))]


def shuffled(drawn) -> list[int]:
    return drawn.permutation(COUNT).tolist()


def get(proxy, number: int, epoch: int) -> None:
    headers = {"x-shade-job": f"train;epoch={epoch}"}
    request = urllib.request.Request(f"{proxy.s3}/data/{number:03d}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert len(answer.read()) == SIZE


def simulated(path, policy: str) -> dict:
    command = [sys.executable, "-m", "shadeproxy", "simulate", "--trace", str(path), "--policy", policy]
    command += ["--cache", "20%", "--json", "--no-plot"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    (row,) = json.loads(answer.stdout)["rows"]
    return row


@pytest.mark.parametrize(("policy", "draw"), [("lru", drifting), ("default", shuffled)])
def test_a_recording_simulated_hits_as_the_proxy_did(serve, bucket_directory, tmp_path, policy, draw):
    for number in range(COUNT):
        (bucket_directory / "data" / f"{number:03d}").write_bytes(os.urandom(SIZE))
    path = tmp_path / "reads.npz"
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity=str(COUNT // 5 * RECORD_BYTES),
        policy__name=policy,
        telemetry__trace=str(path),
        prefetch__enabled="false",
    )
    drawn = np.random.default_rng(0)
    orders = [draw(drawn) for _ in range(EPOCHS)]
    for epoch, order in enumerate(orders):
        for number in order:
            get(proxy, number, epoch)
    served = list(proxy.get("/v1/stats")["jobs"]["train"]["epochs"].values())
    assert proxy.stop() == 0

    trace, reads = load_trace(path), [number for order in orders for number in order]
    ids = dict(zip(reads, trace.ids.tolist(), strict=True))
    assert trace.ids.tolist() == [ids[number] for number in reads]
    assert len(set(ids.values())) == len(ids)
    assert trace.epochs.tolist() == np.repeat(np.arange(EPOCHS), len(orders[0])).tolist()
    assert trace.sizes.tolist() == [SIZE] * len(ids)
    assert trace.job_of_reads().tolist() == [0] * len(reads)
    assert (np.diff(trace.times) >= 0).all()
    assert trace.times[-1] > 0
    from_ram = [SOURCES[number] == "ram" for number in trace.sources]
    assert np.sum(from_ram) == sum(epoch["hits_ram"] for epoch in served)
    later = sum(epoch["hits_ram"] for epoch in served[1:]) / sum(epoch["requests"] for epoch in served[1:])
    # The two hit ratios differ a little, because the proxy counts several hits together. So it may take a
    # page for older than another page although it is not.
    assert simulated(path, policy)["hit_ratio"] == pytest.approx(later, abs=0.04)
    assert later > (0.4 if policy == "lru" else 0.15)
