"""The command ``shadeproxy simulate``."""

import json
import math

import numpy as np
import pytest

from shadeproxy.simulate.run import NAMES


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sampler_as_a_table_and_a_picture(shade, here):
    result = shade(
        "simulate", "--sampler", "uniform", "--objects", "500", "--epochs", "3", "--cache", "20%,50%"
    )
    assert result.exit_code == 0
    assert "1,500 reads of 500 objects" in result.stdout
    assert "counted: reads from each job's second epoch on; min: exact MIN" in result.stdout
    for policy in NAMES:
        assert result.stdout.count(f"   {policy} ") == 2
    assert (here / "simulate.png").read_bytes()[:4] == b"\x89PNG"
    assert "plot: simulate.png" in result.stderr


def test_json_has_the_rows_and_nothing_beside_it(shade, here):
    result = shade(
        "simulate", "--sampler", "uniform", "--objects", "2000", "--epochs", "4", "--json",
        "--policy", "lru,static,min", "--cache", "20%", "--plot", here / "p.png",
    )  # fmt: skip
    rows = {row["policy"]: row for row in json.loads(result.stdout)["rows"]}
    assert set(rows["lru"]) == {"policy", "cache", "hit_ratio", "byte_hit_ratio", "distinct", "of_min"}
    assert list(rows) == ["lru", "static", "min"]
    assert rows["lru"]["hit_ratio"] == pytest.approx(0.2 + 0.8 * math.log(0.8), abs=0.01)
    assert rows["static"]["hit_ratio"] == rows["static"]["byte_hit_ratio"] == 0.2
    assert rows["static"]["cache"] == 0.2
    assert repr(rows["static"]["distinct"]) == "2000"
    assert (here / "p.png").exists()


def test_json_draws_nothing_unless_it_is_asked_to(shade, here):
    result = shade("simulate", "--sampler", "uniform", "--objects", "50", "--policy", "lru", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert list(here.glob("*.png")) == []


def test_a_trace_file_and_what_is_announced(shade, here):
    random = np.random.default_rng(0)
    np.savez("t.npz", ids=np.concatenate([random.integers(0, 400, 400) for _ in range(4)]),
             epochs=np.repeat(np.arange(4), 400))  # fmt: skip

    def ratio(*more):
        result = shade("simulate", "--trace", "t.npz", "--policy", "default", "--cache", "20%", "--json",
                       "--no-plot", *more)  # fmt: skip
        return json.loads(result.stdout)["rows"][0]["hit_ratio"]

    unknown = ratio()
    # With any 80 of 400 pages cached, a fifth of uniform draws hit. The standard deviation of 1,600 draws is
    # 0.01.
    assert unknown == pytest.approx(0.2, abs=0.03)
    assert unknown + 0.1 < ratio("--announce", "epoch") < ratio("--announce", "all")
    assert not (here / "simulate.png").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name what to read: --trace FILE.npz, or --sampler uniform|importance|heavy|lagged|shards"),
        (
            ["--trace", "a.npz", "--sampler", "uniform"],
            "--trace and --sampler name different reads: leave one of them out",
        ),
        (["--trace", "a.npz"], "a.npz: there is no such file"),
        (["--sampler", "zipf"], "--sampler: 'zipf' is not one of uniform, importance, heavy, lagged, shards"),
        (["--sampler", "uniform", "--policy", "clock"], "--policy: no policy is called 'clock'"),
        (["--sampler", "uniform", "--cache", "much"], "--cache: 'much': this trace tells no sizes"),
        (
            ["--sampler", "uniform", "--announce", "x"],
            "--announce: 'x' is none of none, epoch, next-half, all",
        ),
        (
            ["--sampler", "shards", "--objects", "1"],
            "--cache: '5%' of this trace holds nothing; write a larger one, or take more --objects",
        ),
        (["--sampler", "lagged", "--ranks", "2"], "--ranks does not go with --sampler lagged"),
        (["--sampler", "shards", "--jobs", "2"], "--jobs does not go with --sampler shards"),
        (["--sampler", "uniform", "--objects", "3", "--ranks", "4"], "--ranks: 4 ranks of 3 objects"),
        (
            ["--sampler", "uniform", "--objects", "100000000", "--epochs", "99"],
            "--objects x --epochs x --jobs is",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(shade, arguments, text):
    result = shade("simulate", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {text}")
    assert result.stderr.count("\n") == 1


def test_without_matplotlib_the_numbers_come_all_the_same(shade, monkeypatch, here):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    asked = ["simulate", "--sampler", "uniform", "--objects", "50", "--policy", "lru"]
    result = shade(*asked)
    assert result.exit_code == 0
    assert "no plot: matplotlib is missing; install with: pip install matplotlib" in result.stderr
    result = shade(*asked, "--plot", "p.png")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the plot needs matplotlib; install with: pip install matplotlib")


def test_a_picture_of_no_known_kind_is_told_and_the_numbers_are_there(shade, here):
    asked = ["simulate", "--sampler", "uniform", "--objects", "50", "--policy", "lru"]
    result = shade(*asked, "--plot", "picture.foo")
    assert result.exit_code == 1
    assert "lru" in result.stdout
    assert result.stderr.endswith(
        "error: the plot cannot be written to picture.foo: write a name that ends in .png, .svg or .pdf\n"
    )
