"""The study of shared columns: with them, pages hit about as often as when each job is asked."""

import pytest

from shadeproxy_bench.studies.hit_ratios.shared import main


@pytest.mark.parametrize("kind", ["announced", "scored", "lagged"])
def test_shared_columns_hit_as_each_job_asked_does(kind, tmp_path, capsys):
    out = tmp_path / "shared.md"
    options = ["--samples", "4000", "--reads", "1500", "--jobs", "8", "--kinds", kind]
    assert main([*options, "--out", str(out)]) == 0
    line = out.read_text().splitlines()[-1]
    name, exact, shared, difference = (cell.strip() for cell in line.strip("|").split("|"))
    assert name == f"8 jobs, {kind}, cache 10%"
    assert float(exact) > 10
    assert float(shared) == pytest.approx(float(exact), abs=2), "of 100"
    assert float(difference) == pytest.approx(float(shared) - float(exact), abs=0.011)
    assert line in capsys.readouterr().out
