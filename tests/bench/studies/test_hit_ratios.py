"""Study (a): every workload runs, the tables show the results, and the results are compared with the
promises.
"""

import msgspec
import pytest

from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.run import NAMES, Question, Result, Row, parse_caches, simulate
from shadeproxy_bench.studies.hit_ratios.__main__ import earlier_findings
from shadeproxy_bench.studies.hit_ratios.report import Finding, markdown
from shadeproxy_bench.studies.hit_ratios.scenarios import CACHES, SCENARIOS, Promise, Scenario


def scenario(promised: float) -> Scenario:
    return Scenario(
        "one", "some reads", lambda _objects, _seed: None, "none", (Promise(0.2, "default", promised),)
    )


def finding(hit_ratio: float) -> Finding:
    rows = [Row(name, 0.2, hit_ratio if name == "default" else 0.5, 0.5, 70.0, 1.0) for name in NAMES]
    return Finding("one", "some reads", "none", 1.0, Result(rows, [], 100, 80, None, "all reads", "exact"))


def document(promised: float, found: float, earlier: str = "") -> str:
    return markdown(
        [(scenario(promised), finding(found))],
        machine="a machine",
        objects=80,
        seed=0,
        picture="p.png",
        earlier=earlier,
    )


def test_a_promise_is_reached_or_missed():
    assert "| some reads | 20% | 43.0% | 43.0% | 50.0% | 50.0% | reached |" in document(0.43, 0.43)
    assert "| 20% | 43.0% | 42.9% | 50.0% | 50.0% | **missed** |" in document(0.43, 0.429)


def test_every_policy_is_a_line():
    text = document(0.1, 0.25)
    assert "| default | 25.0% |" in text
    assert all(f"| {name} | 50.0% |" in text for name in NAMES if name != "default")
    assert "100 reads, 70 distinct objects an epoch." in text


def test_what_a_person_wrote_stays():
    first = document(0.1, 0.2)
    again = document(0.1, 0.3, earlier=f"{first}\nLRU is useless here.\n")
    assert again.endswith("## Findings and limits\n\nLRU is useless here.\n")
    assert "30.0%" in again


def test_findings_come_back_from_their_file(tmp_path):
    path = tmp_path / "hit-ratios.json"
    assert earlier_findings(path) == []
    path.write_bytes(msgspec.json.encode([finding(0.3)]))
    assert earlier_findings(path) == [finding(0.3)]


@pytest.mark.parametrize("one", SCENARIOS, ids=lambda one: one.name)
def test_every_workload_runs_and_the_clairvoyant_bounds_it(one):
    trace = one.trace(200, 0)
    question = Question(
        trace, ("default", "lru", "min"), parse_caches("20%", trace), parse_announce(one.announce)
    )
    ratio = {row.policy: row.hit_ratio for row in simulate(question).rows}
    assert ratio["lru"] <= ratio["min"]
    assert ratio["default"] <= ratio["min"]
    assert ratio["min"] > 0.1
    assert {promise.cache for promise in one.promises} <= {
        float(part[:-1]) / 100 for part in CACHES.split(",")
    }
