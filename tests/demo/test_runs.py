"""The data source of each contestant of the demo, and the end of its training."""

import os
import select
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from shadeproxy.demo import runs
from shadeproxy.demo.messages import ExistingServer, TrainingPlan
from shadeproxy.demo.runs import DIRECT, SHADE, Stage, _data_source, run


def stage(directory: Path) -> Stage:
    (directory / "objects" / "train").mkdir(parents=True)
    (directory / "objects" / "train" / "one").write_bytes(b"a body")
    plan = TrainingPlan(control_url=None, bucket="train", prefix="", test_file="", epochs=1)
    return Stage(directory, directory / "objects", 1 << 20, plan, {})


def test_without_a_cache_the_origin_is_read_as_an_s3_server_and_not_by_batch_calls(tmp_path):
    with _data_source(DIRECT, stage(tmp_path), tmp_path) as source:
        assert isinstance(source, ExistingServer)
        with urllib.request.urlopen(f"{source.endpoint}/train/one", timeout=10) as answer:
            assert answer.read() == b"a body"
            assert answer.headers["x-shade-cache"] == "bypass"  # The built-in origin caches nothing.


def test_a_training_is_gone_when_its_events_are_no_longer_wanted(tmp_path, monkeypatch):
    """The training process ends when the demo stops reading its events. This holds even while a traceback
    keeps its frames alive.
    """
    child = 'import os, time; print(\'{"type": "step"}\', os.getpid(), flush=True); time.sleep(600)'
    monkeypatch.setattr(runs, "_TRAIN", (sys.executable, "-c", child))
    monkeypatch.setattr(runs.msgspec.json, "Decoder", lambda _: SimpleNamespace(decode=bytes.split))
    seen = []

    def watch(event):
        seen.append(os.pidfd_open(int(event[-1])))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(DIRECT, stage(tmp_path), watch)
    assert caught.tb
    ended, _, _ = select.select(seen, [], [], 0)
    os.close(seen[0])
    assert ended


def test_the_others_ask_a_proxy(tmp_path):
    with (
        _data_source(SHADE, stage(tmp_path), tmp_path) as source,
        urllib.request.urlopen(f"{source}/readyz", timeout=10) as answer,
    ):
        assert answer.status == 200
