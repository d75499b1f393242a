"""The command ``shadeproxy plan``, on the profile of a replayed run."""

import json
import re
from dataclasses import replace

import msgspec
import pytest

from shadeproxy.cli import plan
from shadeproxy.core.types import JobContext, Source
from shadeproxy.plan.predict import Predictor
from shadeproxy.plan.profile import Loader
from shadeproxy.simulate.workloads import uniform
from shadeproxy.telemetry.recording import RecordedRead, Recording, write
from tests.support.profiles import PRICES, SAMPLES, epoch, profile, truth
from tests.support.traces import save_trace


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return the path of a profile: three epochs of 8,192 samples with 8 workers."""
    path = tmp_path_factory.mktemp("profiles") / "profile.json"
    path.write_bytes(msgspec.json.encode(profile(*(epoch(number, truth(), 0.2) for number in range(3)))))
    return path


@pytest.fixture(scope="module", autouse=True)
def _fit_once():
    """Fit each profile once for all tests, which takes a third of a second, and not for each command."""
    fitted = {}

    def predictor(profile, **options):
        key = msgspec.json.encode((profile, options))
        if key not in fitted:
            fitted[key] = Predictor(profile, **options)
        return fitted[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "Predictor", predictor)
        yield


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


def test_a_table_with_the_cheapest_row_marked(shade, kept, prices):
    result = shade(
        "plan", "--profile", kept, "--cache", "20%,100%", "--workers", "8,16", "--prices", prices,
        "--deadline", "1h", "--epochs", "5",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "job resnet: 8,192 reads an epoch of 97.7 KiB; measured: 3 epochs with 8 workers" in result.stdout
    assert result.stdout.count("<- chosen") == 1
    assert "announced" in result.stdout
    assert "outside the profile" in result.stdout
    assert "prices of 2026-11-01" in result.stdout
    # one row for each combination of 2 caches, 2 numbers of workers, 2 orders and 2 instances
    assert result.stdout.count("±") == 16


def test_json_has_the_rows_and_what_was_chosen(shade, kept):
    result = shade("plan", "--profile", kept, "--cache", "20%,400 MB", "--deadline", "2h", "--json")
    plan = json.loads(result.stdout)
    assert [(row["cache"], row["announced"]) for row in plan["rows"]] == [
        ("20%", False), ("20%", True), ("400 MB", False), ("400 MB", True),
    ]  # fmt: skip
    assert plan["rows"][2]["hit_ratio"] == pytest.approx(400e6 / 819.2e6)
    assert plan["chosen"] == 0
    assert 0 <= plan["error"] < 0.05


def test_a_recording_replaces_the_closed_form(shade, kept, tmp_path):
    trace = tmp_path / "reads.npz"
    save_trace(uniform(1000, 5), trace)
    result = shade("plan", "--profile", kept, "--trace", trace, "--cache", "20%", "--order", "no", "--json")
    assert json.loads(result.stdout)["rows"][0]["hit_ratio"] == pytest.approx(0.2, abs=0.01)


def save_recording(path, jobs):
    """Write a recording of two epochs: each of ``jobs`` reads 500 objects of its own in each epoch."""
    recording = Recording(10_000)
    for epoch_number in range(2):
        for number, name in enumerate(jobs):
            job = JobContext(name, epoch_number, 0) if name else None
            for ident in range(500):
                recording.note(RecordedRead(1000 * number + ident, 100, job, Source.ORIGIN, "b/p"), 0.0)
    write(recording.snapshot(), path)


def test_only_the_reads_of_the_job_count_in_a_recording(shade, kept, tmp_path):
    trace = tmp_path / "reads.npz"
    asked = ("plan", "--profile", kept, "--trace", trace, "--cache", "100%", "--order", "no", "--json")
    save_recording(trace, ["other", "resnet", ""])
    result = shade(*asked)
    assert json.loads(result.stdout)["rows"][0]["hit_ratio"] == 1.0
    told = "only the reads of job resnet count here, not those of other, clients that name no job"
    assert told in result.stderr
    save_recording(trace, ["resnet"])
    assert "count here" not in shade(*asked).stderr


@pytest.mark.parametrize("jobs", [["other"], ["other", "third", ""]])
def test_a_recording_without_reads_of_the_job_is_refused(shade, kept, tmp_path, jobs):
    trace = tmp_path / "reads.npz"
    save_recording(trace, jobs)
    result = shade("plan", "--profile", kept, "--trace", trace)
    assert result.exit_code == 2
    assert "the recording has no read of job 'resnet', only reads of other" in result.stderr
    assert ("clients that name no job" in result.stderr) == ("" in jobs)


@pytest.mark.parametrize("order", ["no", "no,announced"])
@pytest.mark.parametrize("epochs", [None, uniform(1000, 5).epochs])
def test_a_recording_without_epochs_says_that_it_has_no_announced_order(shade, kept, tmp_path, epochs, order):
    trace = tmp_path / "reads.npz"
    save_trace(replace(uniform(1000, 5), epochs=epochs), trace)
    result = shade("plan", "--profile", kept, "--trace", trace, "--cache", "20%", "--order", order, "--json")
    told = "the recording has no epochs, so hits are computed without an announced order" in result.stderr
    assert told == (epochs is None and order != "no")


def test_a_picture_and_the_profile_are_kept(shade, kept, tmp_path):
    picture, again = tmp_path / "plan.png", tmp_path / "again.json"
    result = shade("plan", "--profile", kept, "--plot", picture, "--save", again, "--order", "no")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert f"plot: {picture}" in result.stderr
    assert msgspec.json.decode(again.read_bytes()) == msgspec.json.decode(kept.read_bytes())


def test_a_store_that_is_further_away_is_asked_about(shade, kept):
    def epoch_s(*more):
        arguments = ("--cache", "20%", "--order", "no", "--json", *more)
        return json.loads(shade("plan", "--profile", kept, *arguments).stdout)["rows"][0]["epoch_s"]

    assert epoch_s("--latency", "100 ms") == pytest.approx(2 * epoch_s(), rel=0.05)


def test_no_row_in_time_names_the_fastest(shade, kept):
    result = shade("plan", "--profile", kept, "--deadline", "1 s", "--cache", "20%")
    assert re.search(
        r"no row ends within 1\.0 s with its error of \d+% added; the\s+fastest takes", result.stdout
    )


def test_one_epoch_and_one_worker_are_said_in_the_singular(shade, tmp_path):
    path = tmp_path / "p.json"
    told = profile(epoch(0, truth(1), 0.2), loader=Loader(workers=1, batch_size=64))
    path.write_bytes(msgspec.json.encode(told))
    result = shade("plan", "--profile", path, "--cache", "20%", "--order", "no", "--deadline", "1 s")
    shown = " ".join(result.stdout.split())
    assert "measured: 1 epoch with 1 worker, batches of 64" in shown
    assert "cache 20%, 1 worker, order no" in shown


def test_a_full_processor_is_named_with_what_helps(shade, tmp_path):
    path = tmp_path / "p.json"
    for cpu_s, named in ((0.1, False), (30.0, True)):
        path.write_bytes(msgspec.json.encode(profile(epoch(0, truth(), 0.2, cpu_s=cpu_s))))
        result = shade("plan", "--profile", path, "--cache", "20%", "--workers", "16")
        assert ("bound by cpu: the proxy's processor is full; start more processes" in result.stdout) == named
        rows = json.loads(shade("plan", "--profile", path, "--cache", "20%", "--json").stdout)["rows"]
        assert ("cpu" in {row["bound_by"] for row in rows}) == named
        assert all(row["epoch_s"] >= row["bounds"]["cpu"] for row in rows)


def test_several_epochs_that_are_counted_as_one_are_noticed(shade, tmp_path):
    path = tmp_path / "p.json"
    for samples, noticed in ((SAMPLES, False), (SAMPLES // 2, True)):
        path.write_bytes(msgspec.json.encode(profile(epoch(0, truth(), 0.2), samples=samples)))
        result = shade("plan", "--profile", path, "--cache", "20%")
        assert (
            "an epoch has 8,192 reads of 4,096 samples: if these were several" in result.stdout
        ) == noticed
        assert "one epoch was measured, so the error" in result.stdout


def test_an_epoch_that_may_still_run_is_noticed(shade, tmp_path):
    path = tmp_path / "p.json"
    for samples, noticed in ((SAMPLES, False), (2 * SAMPLES, True)):
        path.write_bytes(msgspec.json.encode(profile(epoch(0, truth(), 0.2), samples=samples)))
        result = shade("plan", "--profile", path, "--cache", "20%")
        said = (
            "the longest measured epoch has 8,192 reads of 16,384 samples: if it is not over yet, plan again"
        )
        assert (said in result.stdout) == noticed


def test_names_in_a_file_of_prices_are_no_markup(shade, kept, tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('currency = "[/b]"\ndate = "[/i]"\n[instances."[/red]"]\nper_hour = 1\n')
    result = shade(
        "plan", "--profile", kept, "--cache", "20%", "--prices", path, "--plot", tmp_path / "[b].png"
    )
    assert result.exit_code == 0
    for name in ("[/b]", "[/red]", "prices of [/i]"):
        assert name in result.stdout


def test_one_epoch_with_waits_among_others_has_an_unknown_error(shade, tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(
        msgspec.json.encode(profile(*(epoch(number, truth(), 1.0 if number else 0.0) for number in range(3))))
    )
    result = shade("plan", "--profile", path, "--cache", "20%")
    assert "one epoch in which training waited was measured, so the error" in result.stdout
    assert "±" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cache", "120%"), "--cache: '120%' is not a share of the data; write 0% to 100%"),
        (("--cache", "much"), "--cache: 'much' is no size; write a share as 20%, or \"8 GiB\""),
        (("--cache", ","), "--cache: no value is named"),
        (("--cache", "20"), "--cache: '20' has no unit; write a share as 20%, or \"20 GiB\""),
        (("--workers", "-1"), "--workers: '-1' is no number of workers from 0 to 1024"),
        (("--workers", "9" * 5000), "is no number of workers from 0 to 1024"),
        (("--cache", "9" * 400 + " GiB"), "is no size; write a share as 20%"),
        (("--samples-per-s", "nan"), "--samples-per-s: write the samples of one rank a second, as 2000"),
        (("--samples-per-s", "1e-300"), "--samples-per-s: write the samples of one rank a second, as 2000"),
        (("--samples-per-s", "inf"), "--samples-per-s: write the samples of one rank a second, as 2000"),
        (("--order", "yes"), "--order: 'yes' is neither no nor announced"),
        (("--deadline", "0"), "--deadline: '0' is over already; write how long the run may take, as 12h"),
        (("--deadline", "soon"), "--deadline: 'soon' is not a time"),
        (("--link", "fast"), "--link: 'fast' is no speed; write bytes a second, as \"100 MB/s\""),
        (("--latency", "far"), "--latency: 'far' is not a time: write it as \"250 ms\""),
        (("--loader", "8"), "--loader: '8' is not WORKERS,BATCH[,PREFETCH[,READS]]"),
        (("--loader", "8,0"), "--loader: '8,0' is not WORKERS,BATCH[,PREFETCH[,READS]]"),
        (("--instances", "a"), "--instances needs --prices"),
        (("--job", "a"), "--job and --profile: a profile names its own job; write one of them"),
        (("--workers", ",".join(map(str, range(1, 200)))), "these options make 1,990 rows; at most 1,000"),
        (("--trace", "none.npz"), "none.npz"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(shade, kept, arguments, said):
    result = shade("plan", "--profile", kept, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_an_instance_without_a_price_is_named(shade, kept, prices):
    result = shade("plan", "--profile", kept, "--prices", prices, "--instances", "small,huge")
    assert result.exit_code == 2
    assert "--instances: the prices name no 'huge'; they name small, big" in result.stderr
    result = shade("plan", "--profile", kept, "--prices", prices, "--instances", ",")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--instances: no value is named" in result.stderr


def test_a_profile_that_is_not_there_is_named(shade, tmp_path):
    result = shade("plan", "--profile", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "none.json: No such file or directory" in result.stderr


def test_without_a_proxy_the_reason_is_said(shade, taken_port):
    result = shade("plan", "--job", "a", "--url", f"http://127.0.0.1:{taken_port + 1}")
    assert result.exit_code != 0
    assert "start it with `shadeproxy serve`" in result.stderr or "asks" in result.stderr


def test_a_picture_without_matplotlib_says_how_to_do_without(shade, kept, monkeypatch):
    monkeypatch.setattr("shadeproxy.simulate.plots.has_matplotlib", lambda: False)
    result = shade("plan", "--profile", kept, "--plot", "p.png")
    assert result.exit_code == 1
    assert "install with: pip install matplotlib, or leave --plot out" in result.stderr


def test_a_job_with_an_odd_name_is_asked_for_by_that_name(shade, kept, monkeypatch):
    asked = []

    def get(_client, path):
        asked.append(path)
        return json.loads(kept.read_bytes())

    monkeypatch.setattr("shadeproxy.cli.control.ControlClient.get", get)
    assert shade("plan", "--job", "a/b?c", "--cache", "20%", "--order", "no").exit_code == 0
    assert asked == ["/v1/jobs/a%2Fb%3Fc/profile"]
