"""Study (d): its points are right, the text on its page that a person wrote is kept, and all ways of reading
are run.
"""

import msgspec
import pytest

from shadeproxy_bench.objects import BUCKET, write_objects
from shadeproxy_bench.studies.monarch.__main__ import earlier_points, markdown
from shadeproxy_bench.studies.monarch.report import by_epoch, epochs_table, needed_s
from shadeproxy_bench.studies.monarch.runs import WAYS, Point, Scale, run, shard

SCALE = Scale(
    shards=6,
    shard_bytes=256 << 10,
    read_bytes=32 << 10,
    page_bytes=64 << 10,
    readers=2,
    link_bytes_per_s=100_000_000,
    rate_bytes_per_s=100_000_000,
    epochs=2,
)


def point(way="LRU", seed=0, epoch=0, *, wall_s=3.0, size_bytes=96_000_000):
    return Point(way, seed, epoch, wall_s, 1.0, 1.5, 100, size_bytes)


def test_what_an_epoch_needs_is_the_slower_of_loop_and_link():
    scale = Scale(link_bytes_per_s=48_000_000)
    assert needed_s(scale, point()) == 2.0
    assert needed_s(scale, point(size_bytes=10)) == 1.5


def test_an_epoch_is_the_median_of_its_seeds():
    found = [point(seed=seed, epoch=epoch, wall_s=seed**2 + epoch) for seed in range(3) for epoch in (0, 1)]
    assert by_epoch(found, "LRU", lambda one: one.wall_s) == [1.0, 2.0]
    lines = epochs_table(found, lambda one: one.wall_s, ".1f").splitlines()
    assert lines[0] == "| | epoch 1 | epoch 2 |"
    assert lines[2:] == ["| LRU | 1.0 | 2.0 |"]


def test_a_page_made_anew_keeps_what_was_written_by_hand(tmp_path):
    found = [point(way.name, epoch=epoch) for way in WAYS for epoch in range(2)]
    page = tmp_path / "README.md"
    page.write_text(markdown(found, SCALE, tmp_path, ["busy"]))
    assert "Warning: busy." in page.read_text()
    assert (tmp_path / "epochs.png").stat().st_size > 0
    page.write_text(page.read_text() + "\nIt shows little.\n")
    again = markdown(found, SCALE, tmp_path, [])
    assert again.endswith("It shows little.\n")
    assert again.count("## Findings and limits") == 1


def test_only_whole_runs_of_the_same_loop_are_kept(tmp_path):
    path = tmp_path / "results.json"
    assert earlier_points(path, SCALE) == []
    compute_s = SCALE.data_bytes / SCALE.rate_bytes_per_s
    whole = [msgspec.structs.replace(point(epoch=epoch), compute_s=compute_s) for epoch in range(2)]
    path.write_bytes(msgspec.json.encode(whole))
    assert earlier_points(path, SCALE) == whole
    for bad in (whole[:1], [point(epoch=epoch) for epoch in range(2)]):
        path.write_bytes(msgspec.json.encode(bad))
        with pytest.raises(ValueError, match="runs of another scale: leave --resume out"):
            earlier_points(path, SCALE)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]])
def test_a_way_is_measured_on_running_servers(way, tmp_path):
    write_objects(tmp_path / "buckets", [shard(SCALE, number) for number in range(SCALE.shards)])
    assert (tmp_path / "buckets" / BUCKET).is_dir()
    first, second = run(SCALE, way, 0, buckets=tmp_path / "buckets", work=tmp_path / "work")
    assert (first.epoch, second.epoch) == (0, 1)
    assert first.compute_s == pytest.approx(SCALE.data_bytes / 1e8)
    assert first.bytes >= SCALE.data_bytes
    if way.policy is None:
        assert first.operations == second.operations == SCALE.pieces
        assert second.bytes == SCALE.data_bytes
    else:
        # Each fetched page serves two reads, and half of the data stays cached.
        assert first.operations < SCALE.pieces
        assert second.bytes < first.bytes
