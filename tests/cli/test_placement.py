"""The command ``shadeproxy plan --place``."""

import json

import msgspec
import numpy as np
import pytest

from shadeproxy.core.errors import UnknownName
from tests.support.profiles import DEVICES, epoch, profile, truth

DATASETS = """
[datasets.images]
samples = 1_281_167
sample_size = "110 KB"
reads_per_s = 3000
[datasets.video]
samples = 100_000
sample_size = "4 MB"
reads_per_s = 60
"""


@pytest.fixture
def devices(tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(DEVICES + DATASETS)
    return path


def test_a_table_of_data_sets_and_devices_with_the_bound(shade, devices):
    result = shade("plan", "--place", "--devices", devices)
    assert result.exit_code == 0
    for said in (
        "images",
        "131.2 GiB",
        "3,000",
        "video",
        "hdd",
        "1.8 TiB",
        "no placement is below",
        "above)",
    ):
        assert said in result.stdout
    assert "beside it: the most reads a byte on the first device, then on the next:" in result.stdout


def test_json_has_shares_loads_and_what_simple_placements_reach(shade, devices):
    report = json.loads(shade("plan", "--place", "--devices", devices, "--json").stdout)
    assert [one["name"] for one in report["devices"]] == ["ram", "ssd", "hdd", "origin"]
    for dataset in report["datasets"]:
        assert sum(dataset["shares"].values()) == pytest.approx(1, abs=0.001)
    loads = [one["load"] for one in report["devices"]]
    assert max(loads) == report["makespan"] == pytest.approx(report["bound"], rel=0.01)
    # Sixty reads a second of video are too many for the device that seeks.
    assert report["cascade"] > 2 * report["makespan"]
    assert report["devices"][-1]["capacity_bytes"] is None


def test_the_tiers_and_jobs_of_a_proxy_are_placed(shade, monkeypatch):
    told = profile(*(epoch(number, truth(), 0.2) for number in range(2)))
    answers = {
        "/v1/stats": {
            "tiers": {
                "ram": {"limit_bytes": 2e8, "read_speed": 0},
                "disk": {"limit_bytes": 3e8, "read_speed": 2e8},
            },
            "sharing": {"link_is_known": True, "link_bytes_per_s": 1e8},
        },
        "/v1/jobs": {"jobs": [{"job": "a/b", "dataset": "images", "in_use": True}]},
        "/v1/jobs/a%2Fb/profile": json.loads(msgspec.json.encode(told)),
    }
    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", lambda _client, path: answers[path])
    report = json.loads(shade("plan", "--place", "--json").stdout)
    (dataset,) = report["datasets"]
    assert dataset["name"] == "images"
    assert dataset["shares"]["ram"] == pytest.approx(2e8 / 819.2e6, rel=0.01)
    result = shade("plan", "--place", "--link", "1 GB/s", "--json")
    assert json.loads(result.stdout)["makespan"] < report["makespan"]


@pytest.mark.parametrize("in_use", [(True, False), (False, False), (True, True)])
def test_only_jobs_in_use_count_unless_none_is(shade, monkeypatch, devices, in_use):
    told = profile(epoch(0, truth(), 0.2))
    jobs = [
        {"job": name, "dataset": "images", "in_use": used} for name, used in zip("ab", in_use, strict=True)
    ]

    def get(_client, path):
        return json.loads(msgspec.json.encode(told)) if path.endswith("/profile") else {"jobs": jobs}

    devices.write_text(DEVICES)
    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", get)
    (dataset,) = json.loads(shade("plan", "--place", "--devices", devices, "--json").stdout)["datasets"]
    assert dataset["reads_per_s"] == pytest.approx(1000 * (1 if in_use == (True, False) else 2))


def test_a_job_in_use_that_read_nothing_hides_no_job_that_ended(shade, monkeypatch, devices):
    """A program that only posts scores makes a job too, which is in use for an hour."""
    jobs = [
        {"job": name, "dataset": data_set, "in_use": data_set is None}
        for name, data_set in (("scores", None), ("training", "images"))
    ]

    def get(_client, path):
        epochs = [epoch(0, truth(), 0.2)] if "training" in path else []
        told = json.loads(msgspec.json.encode(profile(*epochs)))
        return told if path.endswith("/profile") else {"jobs": jobs}

    devices.write_text(DEVICES)
    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", get)
    (dataset,) = json.loads(shade("plan", "--place", "--devices", devices, "--json").stdout)["datasets"]
    assert dataset["name"] == "images"


def test_a_job_that_was_forgotten_meanwhile_is_left_out(shade, monkeypatch, devices):
    def get(_client, path):
        if path.endswith("/profile"):
            raise UnknownName("no job 'gone'")
        return {"jobs": [{"job": "gone", "dataset": None, "in_use": False}]}

    devices.write_text(DEVICES)
    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", get)
    result = shade("plan", "--place", "--devices", devices)
    assert result.exit_code == 2
    assert "no job of the proxy has read a whole epoch yet" in result.stderr


def test_a_proxy_whose_jobs_have_read_nothing_is_said(shade, monkeypatch, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(DEVICES)
    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", lambda _client, _path: {"jobs": []})
    result = shade("plan", "--place", "--devices", path)
    assert result.exit_code == 2
    assert "no job of the proxy has read a whole epoch yet: name data sets in the file" in result.stderr


def test_prefixes_that_are_markup_or_control_a_terminal_are_shown_as_they_are(shade, devices, tmp_path):
    """A prefix that looks like markup or controls a terminal is shown as it is. The prefixes of a recording
    are names that clients chose.
    """
    path, names = tmp_path / "t.npz", ["[/red]", "[bold]x", "a\x1b[2J"]
    reads = np.arange(30, dtype=np.uint64)
    np.savez(
        path, version=np.array([2]), objects=reads, bytes=np.full(30, 9, np.uint32),
        readers=np.zeros(30, np.uint16), epochs=np.zeros(30, np.uint16), times_ms=reads.astype(np.uint32),
        places=(reads % 3).astype(np.uint16), reader_jobs=np.zeros(1, np.uint8),
        reader_ranks=np.zeros(1, np.uint16), job_names=np.array(["a"]), group_names=np.array(names),
    )  # fmt: skip
    result = shade("plan", "--place", "--devices", devices, "--trace", path)
    assert result.exit_code == 0
    assert "[/red]" in result.stdout
    assert "[bold]x" in result.stdout
    assert "a?[2J" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--devices", "none.toml"), "--devices goes with --place; write that too, or leave it out"),
        (("--place", "--devices", "none.toml"), "--devices none.toml: No such file or directory"),
        (
            ("--place", "--devices", "FILE", "--link", "1 MB/s"),
            "--devices and --link: the file says how fast",
        ),
        (("--place", "--devices", "FILE", "--deadline", "3h"), "--place takes no --deadline: leave one of"),
        (("--place", "--cache", "20%"), "--place takes no --cache: leave one of them out"),
        (("--place", "--samples-per-s", "5"), "--place takes no --samples-per-s"),
        (("--place", "--devices", "FILE", "--trace", "none.npz"), "none.npz: there is no such file"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(shade, devices, arguments, said):
    result = shade("plan", *(devices if one == "FILE" else one for one in arguments))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
