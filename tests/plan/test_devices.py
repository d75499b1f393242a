"""Devices and datasets for ``plan``, read from files, statistics, profiles and recordings."""

from dataclasses import replace

import numpy as np
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.devices import demands_of, devices_of, groups_of, groups_of_trace, load_devices
from shadeproxy.simulate.trace import Trace
from tests.support.profiles import BYTES, DEVICES, SAMPLES, epoch, profile, truth

FILE = f"""{DEVICES}
[datasets.images]
samples = 1000
sample_size = "100 KB"
reads_per_s = 50
"""


@pytest.fixture
def written(tmp_path):
    def written(text):
        path = tmp_path / "devices.toml"
        path.write_text(text)
        return path

    return written


def test_a_file_has_devices_the_origin_last_and_data_sets(written):
    devices, demands = load_devices(written(FILE))
    assert [tuple(one) for one in devices] == [
        ("ram", 32e9, 20e9, np.inf), ("ssd", 200e9, 500e6, np.inf), ("hdd", 2e12, 150e6, 150.0),
        ("origin", np.inf, 250e6, np.inf),
    ]  # fmt: skip
    assert [tuple(one) for one in demands] == [("images", 100e6, 50.0, 5e6)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[devices.ram]", "[devices.origin]", "the origin is the table [origin], not [devices.origin]"),
        (
            "reads_per_s = 150",
            "seeks = 150",
            "contains unknown field `seeks` - at `$.devices[...]`; such a file has [origin]",
        ),
        ('"2 TB"', '"much"', "devices.hdd.capacity: 'much' is not a size: write it as"),
        ('"150 MB/s"', '"0"', "devices.hdd.read_speed: '0' is no speed; write bytes a second, as"),
        ('"250 MB/s"', '"fast"', "origin.read_speed: 'fast' is no speed"),
        ("reads_per_s = 150", "reads_per_s = 0", "Expected `float` >= 1e-06"),
        ("reads_per_s = 150", "reads_per_s = 1e-300", "Expected `float` >= 1e-06"),
        ('"100 KB"', '"x"', "datasets.images.sample_size: 'x' is not a size"),
        ('"100 KB"', '"0"', "datasets.images.sample_size: a sample has 1 byte or more"),
        ("samples = 1000", "samples = 0", "Expected `int` >= 1"),
        ("samples = 1000", f"samples = 1{'0' * 400}", "Expected `int`"),
        ("reads_per_s = 50", "reads_per_s = inf", "Expected `float` <= 1000000000000000"),
        ("reads_per_s = 50", "reads_per_s = nan", "Expected `float`"),
        ("reads_per_s = 150", "reads_per_s = nan", "Expected `float`"),
        ("[origin]", "[origin", "is no TOML"),
    ],
)
def test_a_fault_of_the_file_is_named(written, old, new, said):
    with pytest.raises(ConfigError) as error:
        load_devices(written(FILE.replace(old, new)))
    assert said in str(error.value)
    assert str(error.value).startswith("--devices ")


def test_a_file_without_devices_or_with_too_many_is_refused(written):
    origin = '[origin]\nread_speed = "1 MB/s"\n'
    with pytest.raises(ConfigError, match="names no device: add"):
        load_devices(written(origin))
    many = "".join(f'[devices.d{one}]\ncapacity = "1 GB"\nread_speed = "1 MB/s"\n' for one in range(16))
    with pytest.raises(ConfigError, match="names 16 devices; at most 15"):
        load_devices(written(origin + many))
    with pytest.raises(ConfigError, match="No such file"):
        load_devices(written(origin).with_name("none.toml"))


def stats(**sharing):
    tiers = {
        "ram": {"limit_bytes": 1000, "read_speed": 0},
        "disk": {"limit_bytes": 5000, "read_speed": 300},
        "disks[0]": {"limit_bytes": 7000, "read_speed": 100},
    }
    return {"tiers": tiers, "sharing": {"link_is_known": True, "link_bytes_per_s": 50.0} | sharing}


def test_the_tiers_of_a_proxy_are_devices_and_reads_from_ram_take_no_time():
    assert [tuple(one) for one in devices_of(stats(), None)] == [
        ("ram", 1000, np.inf, np.inf), ("disk", 5000, 300, np.inf), ("disks[0]", 7000, 100, np.inf),
        ("origin", np.inf, 50.0, np.inf),
    ]  # fmt: skip
    assert devices_of(stats(), 70.0)[-1].read_speed == 70.0


def test_speeds_that_the_proxy_does_not_know_are_asked_for():
    with pytest.raises(ConfigError, match="speed of the origin is not known yet: write it, as --link"):
        devices_of(stats(link_is_known=False), None)
    alone = stats()
    alone["tiers"]["disk"]["read_speed"] = 0
    with pytest.raises(ConfigError, match=r"tier disk is not known.*see --devices"):
        devices_of(alone, None)


def test_jobs_of_one_data_set_add_their_reads_and_take_its_room_once():
    epochs = [epoch(number, truth(), 0.2) for number in range(2)]
    demands = demands_of(
        [
            ("images", profile(*epochs)),
            ("images", profile(*epochs)),
            ("none", profile()),
            ("text", profile(*epochs)),
        ]
    )
    assert [one.name for one in demands] == ["images", "text"]
    images, text = demands
    assert text.reads_per_s == pytest.approx(1000, rel=0.01)  # A sample takes 1 ms.
    assert images.reads_per_s == pytest.approx(2 * text.reads_per_s)
    assert images.size_bytes == text.size_bytes == SAMPLES * BYTES
    assert groups_of(demands).bytes_per_s == pytest.approx([2e8, 1e8], rel=0.01)


def test_a_job_that_does_not_tell_its_speed_counts_as_it_was_measured():
    told = epoch(0, truth(), 0.2, compute_s=0.0, stall_s=0.0)
    (demand,) = demands_of([("images", profile(told))])
    assert demand.reads_per_s == pytest.approx(SAMPLES / told.wall_s)


def test_objects_of_a_recording_are_grouped_by_prefix():
    ids = np.array([0, 1, 2, 0, 1, 0], np.uint32)
    trace = Trace(
        ids,
        3,
        sizes=np.array([10, 20, 30]),
        times=np.arange(6) / 5 * 2,
        prefixes=np.array([4, 4, 1], np.uint16),
        prefix_names=("a/", "b/"),
    )
    groups = groups_of_trace(trace, "--trace x")
    assert groups.names == ["b/", "others"]
    assert groups.reads_per_s.sum() == pytest.approx(3.0)  # The recording has 6 reads in 2 seconds.
    assert groups.size_bytes.sum() == 60
    alike = Trace(ids, 3, sizes=trace.sizes, times=trace.times)
    assert groups_of_trace(alike, "x").names == ["all objects"]
    assert groups_of_trace(replace(alike, prefix_names=("a/",)), "x").names == ["a/"]


def test_empty_objects_of_a_recording_take_a_byte():
    ids = np.array([0, 1, 0], np.uint32)
    groups = groups_of_trace(Trace(ids, 2, sizes=np.array([0, 5]), times=np.arange(3.0)), "x")
    assert groups.size_bytes.min() >= 1


def test_a_trace_without_times_or_sizes_is_refused():
    ids = np.zeros(3, np.uint32)
    with pytest.raises(ConfigError, match="x has no sizes or no times"):
        groups_of_trace(Trace(ids, 1), "x")
