"""Epochs that the proxy's processor limits, from profiles that contain the processor time."""

import json

import msgspec
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.advice import advise
from shadeproxy.plan.predict import Predictor, Setting
from shadeproxy.plan.processor import measure_processor
from shadeproxy.plan.profile import read_profile
from tests.support.profiles import BYTES, SAMPLES, epoch, profile, truth

ALL = SAMPLES * BYTES


def costing(read_s, fetch_s, *hits, cores=1):
    """Return a profile of epochs with these hit ratios, and with this processor time for each read and each
    fetch.
    """
    return profile(
        *(
            epoch(number, truth(), one, cpu_s=SAMPLES * (read_s + fetch_s * (1 - one)))
            for number, one in enumerate(hits)
        ),
        cores=cores,
    )


def test_an_epoch_takes_at_least_as_long_as_the_processor_is_busy():
    # At 0.2 ms a read, the processor is busy for a fifth of the time in which training computes.
    easy, full = (Predictor(costing(read_s, 0.0, 0.2, 0.2)) for read_s in (0.0002, 0.0025))
    for setting in (Setting(8, announced=False), Setting(64, announced=False), Setting(8, announced=True)):
        bare = Predictor(profile(*(epoch(number, truth(), 0.2) for number in range(2))))
        without = bare.predict(setting, 0.2)
        assert easy.predict(setting, 0.2).epoch_s == without.epoch_s
        assert easy.predict(setting, 0.2).bound_by == without.bound_by
        assert "cpu" not in without.bounds
    for workers, announced in ((64, False), (8, True)):
        found = full.predict(Setting(workers, announced=announced), 0.2)
        assert found.epoch_s == pytest.approx(SAMPLES * 0.0025)
        assert found.stall_share == pytest.approx(1 - 0.001 / 0.0025, abs=0.01)
        assert found.bound_by == "cpu"
    # Half as many reads at the same time wait for the origin, and meanwhile the processor is idle.
    assert full.predict(Setting(4, announced=False), 0.2).bound_by == "latency"


def test_a_full_core_is_named_although_its_wait_was_measured_as_latency():
    measured = Predictor(costing(0.0, 0.0, 0.2)).predict(Setting(8, announced=False), 0.2)
    busy_s = 0.95 * measured.epoch_s / SAMPLES
    found = Predictor(costing(busy_s, 0.0, 0.2, 0.2)).predict(Setting(8, announced=False), 0.2)
    assert found.bounds["latency"] > found.bounds["cpu"]
    assert found.bound_by == "cpu"
    # Training that hardly waits is limited by computing, however busy the processor is.
    idle = Predictor(costing(0.00095, 0.0, 1.0, 1.0)).predict(Setting(8, announced=False), 1.0)
    assert idle.bound_by == "compute"


def test_several_processes_use_several_cores():
    one, four = (
        Predictor(costing(0.0025, 0.0, 0.2, cores=cores)).predict(Setting(64, announced=False), 0.2)
        for cores in (1, 4)
    )
    assert one.bounds["cpu"] == pytest.approx(4 * four.bounds["cpu"])
    assert four.bound_by != "cpu"


def test_a_proxy_that_used_more_than_its_cores_can_use_them():
    wall_s = epoch(0, truth(), 0.2).wall_s
    told = profile(epoch(0, truth(), 0.2, cpu_s=1.5 * wall_s))
    found = Predictor(told).predict(Setting(8, announced=False), 0.2)
    assert found.bounds["cpu"] == pytest.approx(wall_s)


def test_fetches_cost_more_where_epochs_show_it():
    told = costing(0.0001, 0.0004, 0.0, 0.2, 0.2)
    known = measure_processor(told, told.epochs)
    assert known.read_s == pytest.approx(0.0001)
    assert known.fetch_s == pytest.approx(0.0004)
    assert known.busy_s(100, 50) == pytest.approx(100 * 0.0001 + 50 * 0.0004)
    # All epochs fetched about the same number of samples. So they do not show the cost of a fetch.
    alike = costing(0.0001, 0.0004, 0.2, 0.3)
    known = measure_processor(alike, alike.epochs)
    assert known.read_s == pytest.approx(0.0001 + 0.0004 * 0.75)
    assert known.fetch_s == 0.0


@pytest.mark.parametrize(
    ("cold_s", "warm_s", "read_s", "fetch_s"),
    [(0.0002, 0.0004, 0.0003, 0.0), (0.001, 0.0001, 0.0, 0.00055 / 0.75)],
)
def test_no_kind_of_read_costs_less_than_nothing(cold_s, warm_s, read_s, fetch_s):
    # Half of the reads in the second epoch were fetched.
    told = profile(
        epoch(0, truth(), 0.0, cpu_s=SAMPLES * cold_s), epoch(1, truth(), 0.5, cpu_s=SAMPLES * warm_s)
    )
    known = measure_processor(told, told.epochs)
    assert known.read_s == pytest.approx(read_s, abs=1e-9)
    assert known.fetch_s == pytest.approx(fetch_s, abs=1e-9)


def test_samples_that_were_fetched_ahead_count_as_fetches():
    told = profile(
        epoch(0, truth(), 1.0, origin_bytes=ALL, cpu_s=SAMPLES * 0.0005),
        epoch(1, truth(), 1.0, origin_bytes=ALL // 2, cpu_s=SAMPLES * 0.0003),
    )
    known = measure_processor(told, told.epochs)
    assert (known.read_s, known.fetch_s) == (pytest.approx(0.0001), pytest.approx(0.0004))


def test_doctor_names_a_full_processor_and_what_helps():
    wall_s = epoch(1, truth(), 0.2).wall_s
    advice = advise(profile(epoch(1, truth(), 0.2, cpu_s=0.95 * wall_s)))
    assert advice.cause.endswith("% of its time for data: the proxy's processor is full")
    assert advice.remedy == (
        "start more processes of the proxy where cores are idle (s3.workers; it now fills 1), or read larger"
        " objects or whole batches (S3Dataset)"
    )
    for idle in (
        profile(epoch(1, truth(), 0.2, cpu_s=0.5 * wall_s)),
        profile(epoch(1, truth(), 0.2, cpu_s=0.95 * wall_s), cores=2),
    ):
        assert "and the origin takes 50 ms for each" in advise(idle).cause


def test_profiles_of_earlier_versions_have_no_processor_time():
    told = json.loads(msgspec.json.encode(costing(0.0025, 0.0, 0.2)))
    del told["cores"], told["epochs"][0]["cpu_s"]
    kept = read_profile(json.dumps(told).encode(), "p.json")
    assert kept.epochs[0].cpu_s is None
    assert Predictor(kept).predict(Setting(64, announced=False), 0.2).bound_by != "cpu"


@pytest.mark.parametrize("wrong", [{"cores": 0}, {"cores": 1.5}, {"cpu_s": -1}, {"cpu_s": "much"}])
def test_processor_time_that_cannot_be_meant_is_refused(wrong):
    told = json.loads(msgspec.json.encode(costing(0.0025, 0.0, 0.2)))
    (told if "cores" in wrong else told["epochs"][0]).update(wrong)
    with pytest.raises(ConfigError, match="is no profile of a job"):
        read_profile(json.dumps(told).encode(), "p.json")
