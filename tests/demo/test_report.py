import json

import pytest
from PIL import Image

from shadeproxy.demo.messages import Counted, EpochDone
from shadeproxy.demo.plots import write_plots
from shadeproxy.demo.report import through_proxy, without_cache, write_report
from shadeproxy.demo.screen import comparison, findings

TITLES = {"direct": "no cache", "lru": "LRU", "default": "ShadeProxy", "shade": "ShadeProxy+SDK"}
COUNTED = Counted(
    requests=100,
    bytes=1000,
    hits_ram=10,
    hits_disk=5,
    coalesced=3,
    hit_bytes=200,
    origin_requests=82,
    origin_bytes=800,
)
DONE = EpochDone(
    epoch=0,
    wall_s=2.0,
    stall_s=1.0,
    decode_s=0.5,
    reads=99,
    read_bytes=990,
    distinct_samples=90,
    accuracy=0.5,
    counted=None,
)


def test_an_epoch_through_the_proxy_has_what_the_proxy_counted():
    epoch = through_proxy(DONE, COUNTED)
    assert (epoch.requests, epoch.hits_ram, epoch.hits_disk, epoch.coalesced) == (100, 10, 5, 3)
    assert (epoch.hit_ratio, epoch.byte_hit_ratio) == (0.15, 0.2)
    assert (epoch.origin_requests, epoch.origin_bytes) == (82, 800)
    assert (epoch.wall_s, epoch.stall_s, epoch.decode_s, epoch.accuracy) == (2.0, 1.0, 0.5, 0.5)
    assert epoch.distinct_samples == 90


def test_without_a_cache_every_read_is_the_origins():
    asked = without_cache(_with(COUNTED))
    assert (asked.requests, asked.origin_requests, asked.origin_bytes) == (100, 100, 1000)
    assert asked.hit_ratio == 0
    counted_here = without_cache(DONE)
    assert (counted_here.requests, counted_here.origin_requests, counted_here.origin_bytes) == (99, 99, 990)


def test_the_file_has_exactly_the_promised_shape(make_run, make_report, tmp_path):
    path = write_report(make_report(make_run("direct"), make_run("shade", hits=200)), tmp_path)
    report = json.loads(path.read_text())
    assert path.name == "report.json"
    assert set(report) == {"machine", "dataset", "cache_bytes", "runs"}
    assert set(report["dataset"]) == {"objects", "bytes"}
    assert [set(run) for run in report["runs"]] == [{"name", "epochs"}] * 2
    assert set(report["runs"][1]["epochs"][0]) == {
        "wall_s", "stall_s", "decode_s", "requests", "hits_ram", "hits_disk", "coalesced",
        "hit_ratio", "byte_hit_ratio", "origin_requests", "origin_bytes", "distinct_samples", "accuracy",
    }  # fmt: skip


def test_the_table_fits_a_terminal_and_leaves_the_first_epoch_out(make_run, make_report, console):
    runs = [make_run("direct"), make_run("lru", hits=20), make_run("shade", hits=250, accuracy=0.93)]
    console.print(comparison(make_report(*runs), TITLES))
    rows = console.file.getvalue().splitlines()
    row = next(line for line in rows if "ShadeProxy+SDK" in line)
    # 25.0 % is 250 of 1,000 reads. The mean leaves out the first epoch, which only fills the cache.
    assert row.split() == [
        "ShadeProxy+SDK",
        "25.0%",
        "0.0%",
        "750",
        "0.7",
        "10.0",
        "11.0",
        "1,000",
        "93.0%",
    ]
    assert not any("…" in line for line in rows)


@pytest.mark.parametrize(
    ("accuracy", "words"), [(0.93, "3.0 points higher"), (0.87, "3.0 points lower"), (0.902, "the same")]
)
def test_what_is_said_follows_the_numbers(make_run, make_report, accuracy, words):
    scored = make_run("shade", hits=250, joined=40, accuracy=accuracy)
    runs = [make_run("direct"), make_run("lru", hits=16), scored]
    said = " ".join(findings(make_report(*runs)))
    assert "answers 1.6% of the reads" in said
    assert "answers 25.0% from the cache, and a further 4.0% joined a fetch that was on its way. 25%" in said
    assert f"accuracy at the end is {words}" in said
    assert "processor cores" not in said


def test_a_slower_proxy_is_not_hidden(make_run, make_report):
    said = " ".join(findings(make_report(make_run("direct"), make_run("shade", stall_s=12.0))))
    assert "waited 12.0 s an epoch for data through the proxy with scores, 10.0 s without a cache" in said
    assert "share 2 processor cores" in said


def test_there_is_a_legible_picture_of_each_number(make_run, make_report, tmp_path):
    runs = [make_run(name) for name in TITLES]
    paths = write_plots(make_report(*runs), TITLES, tmp_path)
    assert [path.name for path in paths] == ["hit_ratio.png", "stall.png", "accuracy.png"]
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) >= 600


def test_a_report_of_one_run_can_be_drawn(make_run, make_report, tmp_path):
    assert write_plots(make_report(make_run("direct")), TITLES, tmp_path)


def _with(counted: Counted) -> EpochDone:
    fields = {name: getattr(DONE, name) for name in DONE.__struct_fields__}
    return EpochDone(**fields | {"counted": counted})
