"""A cluster with page ownership hits as often as a single cache whose capacity is the sum of the nodes'
capacities.
"""

import pytest

from shadeproxy_bench.studies.hit_ratios import owned
from shadeproxy_bench.studies.hit_ratios.owned import Workload, alone, by_rendezvous, one_cache, owned_caches

NODES, OBJECTS, EPOCHS = 4, 1400, 4


@pytest.mark.parametrize("cache", [0.05, 0.1])
@pytest.mark.parametrize("kind", ["uniform", "importance"])
def test_owners_hit_as_often_as_one_cache_of_their_sum(kind, cache):
    work, places = Workload.of(kind, OBJECTS, EPOCHS), round(cache * OBJECTS)
    one = one_cache(work, NODES, places)
    shared = owned_caches(work, NODES, places, by_rendezvous(NODES))
    assert shared >= 0.97 * one
    assert shared > 1.2 * alone(work, NODES, places)


def test_uniform_epochs_hit_by_the_capacity_of_all():
    work = Workload.of("uniform", OBJECTS, EPOCHS)
    assert owned_caches(work, NODES, OBJECTS // 10, by_rendezvous(NODES)) == pytest.approx(0.4, abs=0.005)


def test_the_study_prints_a_line_for_each_workload(capsys, tmp_path):
    out = tmp_path / "table.md"
    assert owned.main(["--objects", "400", "--epochs", "3", "--caches", "0.1", "--out", str(out)]) == 0
    assert [line.split(" | ")[0] for line in out.read_text().splitlines()[2:]] == [
        "| uniform, 4 x 10%",
        "| importance, 4 x 10%",
    ]
    assert out.read_text() in capsys.readouterr().out
