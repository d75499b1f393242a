"""Study (b): its datasets match their names, and its tables show the epochs."""

import msgspec
import numpy as np
import pytest

from shadeproxy_bench.studies.training.__main__ import earlier_runs, has_run
from shadeproxy_bench.studies.training.data import data_sets
from shadeproxy_bench.studies.training.report import accuracy_at, curves, modes_table
from shadeproxy_bench.studies.training.runs import MODES, Epoch, train


@pytest.fixture(scope="module")
def sets():
    return {data.name: data for data in data_sets(photos=40)}


def labels(data) -> np.ndarray:
    return np.array([data.decode(body, key)[1] for key, body in data.objects])


def test_a_fifth_of_the_noisy_labels_is_wrong_and_none_of_the_others(sets):
    right = labels(sets["digits"])
    assert 0.15 < (labels(sets["noisy"]) != right).mean() < 0.25
    assert [body for _, body in sets["noisy"].objects] == [body for _, body in sets["digits"].objects]


def test_rare_classes_have_about_a_tenth_of_their_samples(sets):
    all_of_them = np.bincount(labels(sets["digits"]), minlength=10)
    kept = np.bincount(labels(sets["imbalanced"]), minlength=10)
    assert kept[:5].tolist() == all_of_them[:5].tolist()
    assert 0.03 < kept[5:].sum() / all_of_them[5:].sum() < 0.2
    assert np.bincount(sets["imbalanced"].test[1], minlength=10).min() > 20


def test_objects_are_big_beside_a_records_overhead_and_fit_the_model(sets):
    for data in sets.values():
        key, body = data.objects[0]
        assert len(body) >= 4096
        pixels, label = data.decode(body, key)
        assert 0 <= label < 10
        assert data.test[0].shape[1:] == pixels.shape
        assert data.model()(data.test[0][:2]).shape == (2, 10)


def epoch(seed: int, number: int, accuracy: float, origin_bytes: int) -> Epoch:
    return Epoch("digits", "lru", seed, number, accuracy, 100, 20, origin_bytes, 80, 100)


def test_curves_add_up_bytes_and_keep_seeds_apart():
    found = curves(
        [epoch(0, 0, 0.5, 10), epoch(0, 1, 0.6, 5), epoch(1, 0, 0.4, 20), epoch(1, 1, 0.7, 1)],
        "digits",
        "lru",
    )
    assert found.origin_bytes.tolist() == [[10, 15], [20, 21]]
    assert found.accuracy.tolist() == [[0.5, 0.6], [0.4, 0.7]]
    assert found.hit_ratio.tolist() == [[0.2, 0.2]] * 2
    assert accuracy_at(found, 20).tolist() == [0.6, 0.4]
    assert np.isnan(accuracy_at(found, 12)).tolist() == [False, True]


def test_a_study_that_was_cut_off_goes_on_with_the_runs_it_lacks(tmp_path):
    assert earlier_runs(tmp_path) == []
    lines = [msgspec.json.encode(epoch(0, number, 0.5, 10)) for number in range(2)]
    (tmp_path / "epochs.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = earlier_runs(tmp_path)
    assert found == [epoch(0, 0, 0.5, 10), epoch(0, 1, 0.5, 10)]
    assert has_run(found, "digits", "lru", 0, 2)
    assert not has_run(found, "digits", "lru", 1, 2)
    assert not has_run(found, "photos", "lru", 0, 2)
    with pytest.raises(ValueError, match="run for 2 epochs: leave --resume out"):
        has_run(found, "digits", "lru", 0, 3)


@pytest.mark.slow
def test_every_mode_trains_through_a_proxy_and_is_a_line_of_the_table(sets, tmp_path):
    data = sets["photos"]
    data.write(tmp_path / "buckets" / "study")
    found = [
        one
        for mode in MODES
        for one in train(data, mode, 0, epochs=2, buckets=tmp_path / "buckets", work=tmp_path / mode.name)
    ]
    assert len(found) == 2 * len(MODES)
    for one in found:
        assert one.samples == 40
        assert one.origin_bytes > 0
        assert 0 < one.distinct <= 40
        assert one.reads >= one.distinct
    first = [one for one in found if one.epoch == 0 and one.mode in {"lru", "uniform"}]
    # The cache is empty and every sample is read once, so all bytes come from the origin.
    assert {one.origin_bytes for one in first} == {data.bytes}
    assert all(mode.words in modes_table(found, "photos") for mode in MODES)
