"""The bound of the hints' memory at a running proxy, and with the SDK: training goes on without room, a
reload makes room, and stored hints are kept.
"""

import logging
import os
import signal
import urllib.error
from contextlib import closing

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk import registration
from tests.support.served import log_of, names, wait_for

COUNT = 300


@pytest.fixture
def config(tmp_path, bucket_directory):
    """Return a function that writes a configuration with this ``control.hint_memory``."""
    for number in range(COUNT):
        (bucket_directory / "data" / f"{number:05d}").write_bytes(number.to_bytes(4, "little") * 100)

    def write(size):
        path = tmp_path / "config.toml"
        origin = f'[origin]\nkind = "file"\npath = "{bucket_directory}"\n'
        path.write_text(f'{origin}[control]\nhint_memory = "{size}"\n')
        return path

    return write


def reload(proxy, event):
    before = len(log_of(proxy, event))
    os.kill(proxy.process.pid, signal.SIGHUP)
    return wait_for(lambda: log_of(proxy, event)[before:])[0]


def test_training_goes_on_without_room_and_is_registered_once_a_reload_has_made_room(
    serve, config, monkeypatch, caplog
):
    monkeypatch.setattr(registration, "_FULL_PAUSE_S", 0.2)
    proxy = serve(config("16 KiB"))
    with closing(shade.Client(proxy.control)) as client:
        data = shade.S3Dataset(client, bucket="data")
        job = client.job("run", dataset=data.manifest, interval_s=3600.0)
        sampler = shade.ShadeSampler(job, mode="uniform", seed=0, batch_size=50)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            ids = list(sampler)
            assert {bytes(one[:2]) for one in client.read_many(data.manifest, ids)} == {
                number.to_bytes(2, "little") for number in range(COUNT)
            }
            job.report(np.array(ids), np.ones(COUNT))
            assert not job.flush()
        (warning,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert "raise control.hint_memory). Training goes on" in warning
        assert proxy.get("/v1/datasets") == {"datasets": []}
        gauges = proxy.get("/v1/stats")["gauges"]
        assert (gauges["hint_bytes"], gauges["hint_limit_bytes"]) == (0, 16384)
        assert "hints refused" in names(proxy.get("/v1/doctor"))
        config("much")
        assert "control.hint_memory" in reload(proxy, "configuration not reloaded")["error"]
        assert proxy.get("/v1/stats")["gauges"]["hint_limit_bytes"] == 16384
        config("1 MiB")
        reload(proxy, "configuration reloaded")
        wait_for(job.flush)
        (known,) = proxy.get("/v1/jobs")["jobs"]
        assert (known["job"], known["scores"]["known"]) == ("run", COUNT)
        job.close()


def test_hints_beyond_a_lowered_limit_are_kept_over_a_restart_and_only_new_ones_are_refused(serve, config):
    proxy = serve(config("1 MiB"))
    listing = {"bucket": "data", "prefix": ""}
    proxy.call("PUT", "/v1/datasets/stored", listing)
    proxy.call("PUT", "/v1/jobs/stored", {"dataset": "stored"})
    proxy.call("POST", "/v1/jobs/stored/scores", {"ids": [7], "scores": [0.5]})
    proxy.stop()
    config("16 KiB")
    proxy.start()
    for _ in range(2):
        proxy.call("PUT", "/v1/datasets/stored", listing)
        proxy.call("PUT", "/v1/jobs/stored", {"dataset": "stored"})
        (known,) = proxy.get("/v1/jobs")["jobs"]
        assert (known["job"], known["scores"]["known"]) == ("stored", 1)
        with pytest.raises(urllib.error.HTTPError) as refused:
            proxy.call("PUT", "/v1/jobs/new", {"dataset": "stored"})
        assert refused.value.code == 507
    gauges = proxy.stats()["gauges"]
    assert gauges["hint_bytes"] > gauges["hint_limit_bytes"]
