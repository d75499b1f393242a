"""Study (c): its points are right, and the text on its page that a person wrote is kept."""

import pytest

from shadeproxy_bench.loader import Epoch
from shadeproxy_bench.studies.stall import grid
from shadeproxy_bench.studies.stall.__main__ import markdown
from shadeproxy_bench.studies.stall.grid import Point, Scale, points
from shadeproxy_bench.studies.stall.report import by_origin


def point(axis="latency", way="LRU", at=0.02, *, link=0.0, wall_s=4.0, missed=800):
    return Point(axis, way, at, link, Epoch(5.0, 2.0, 3.0), Epoch(wall_s, 1.0, 3.0), 1000, missed)


def test_what_an_epoch_needs_is_the_slower_of_loop_and_link():
    assert point().needed_s == 3.0, "no link"
    assert point(link=1000.0).needed_s == 3.0
    assert point(link=100.0).needed_s == 8.0


def test_a_table_has_a_line_for_each_way_and_a_column_for_each_origin():
    found = [point(at=0.1), point(at=0.02, wall_s=2.0), point(way="direct")]
    lines = by_origin(found, "latency", lambda one: one.stall, ".1f").splitlines()
    assert lines[0] == "| | 20 ms | 100 ms |"
    assert "| LRU | 50.0 | 25.0 |" in lines
    assert "| direct | 25.0 | - |" in lines
    assert len(lines) == 2 + len(grid.WAYS)


def test_every_way_is_run_on_every_origin(monkeypatch):
    asked = []
    monkeypatch.setattr(grid, "_point", lambda axis, load, way: asked.append((axis, load, way)))
    list(points(Scale(samples=10, latencies_s=(0.001, 0.002), links_bytes_per_s=(1e6,))))
    assert len(asked) == 3 * len(grid.WAYS)
    assert {load.link_bytes_per_s for axis, load, _ in asked if axis == "latency"} == {0.0}
    assert {load.link_bytes_per_s for axis, load, _ in asked if axis == "link"} == {1e6}


def test_a_page_made_anew_keeps_what_was_written_by_hand(tmp_path):
    found = [
        point(axis, way.name, link=1e6 if axis == "link" else 0.0)
        for axis in ("latency", "link")
        for way in grid.WAYS
    ]
    page = tmp_path / "README.md"
    page.write_text(markdown(found, 10, tmp_path, ["busy"]))
    assert "Warning: busy." in page.read_text()
    assert (tmp_path / "latency.png").stat().st_size > 0
    assert (tmp_path / "link.png").stat().st_size > 0
    page.write_text(page.read_text() + "\nIt shows little.\n")
    again = markdown(found, 10, tmp_path, [])
    assert again.endswith("It shows little.\n")
    assert again.count("## Findings and limits") == 1


@pytest.mark.parametrize("way", [grid.WAYS[0], grid.WAYS[-1]])
def test_a_point_is_measured_on_running_servers(way):
    load = grid.Load(64, 1000, 4096.0, 0.002, workers=2, batch=8)
    found = grid._point("latency", load, way)
    assert found.read_bytes == 64_000
    assert found.missed_bytes <= (64_000 if way is grid.WAYS[0] else 128_000)
    assert found.missed_bytes > 0
    assert found.later.compute_s == pytest.approx(64 / 4096)
