"""What a contestant reads from."""

import urllib.request
from pathlib import Path

from shadeproxy.demo.messages import ExistingServer, TrainingPlan
from shadeproxy.demo.runs import DIRECT, SHADE, Stage, _data_source


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
            assert answer.headers["x-shade-cache"] == "bypass"  # nothing is kept there


def test_the_others_ask_a_proxy(tmp_path):
    with (
        _data_source(SHADE, stage(tmp_path), tmp_path) as source,
        urllib.request.urlopen(f"{source}/readyz", timeout=10) as answer,
    ):
        assert answer.status == 200
