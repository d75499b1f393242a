"""Short rounds in which media fail and stay failed. The product passes. A proxy without tombstones fails."""

import pytest

from shadeproxy_bench.reliability.chaos.media.rounds import MediaRun, judged, play


def quiet(_line: str) -> None: ...


@pytest.mark.harness
def test_a_sound_proxy_answers_nothing_old():
    run = play(6, 1, quiet)
    assert run.passed, "\n".join(judged(run))
    assert run.rounds.total() == 6
    assert run.from_disk
    assert "passed" in judged(run)[0]


@pytest.mark.harness
def test_a_proxy_without_marks_is_noticed():
    """A run notices a proxy that writes no tombstones. It depends on chance whether a round shows this
    defect, so more rounds are played if necessary.
    """
    for seed in range(2, 6):
        run = play(6, seed, quiet, arguments=("--planted",))
        if not run.passed:
            break
    assert run.stale
    assert "FAILED" in judged(run)[0]


def test_a_write_carried_out_in_spite_of_its_503_fails_the_run():
    assert not MediaRun(1, from_disk=5, broken_promises=["PUT of 3"]).passed
    assert not MediaRun(1).passed, "nothing was on disk"
    assert MediaRun(1, from_disk=5).passed
