"""A short crash run passes, and its judges notice planted faults. `make crash` makes the long run."""

import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from shadeproxy_bench.reliability.crash.damage import KINDS, spoil
from shadeproxy_bench.reliability.crash.found import Found
from shadeproxy_bench.reliability.crash.lives import Family
from shadeproxy_bench.reliability.crash.objects import KEYS, body_of
from shadeproxy_bench.reliability.crash.report import markdown
from shadeproxy_bench.reliability.crash.run import crash
from shadeproxy_bench.reliability.crash.scribe import Scribe
from shadeproxy_bench.reliability.crash.truth import Truth


@pytest.mark.harness
def test_a_short_run_finds_nothing(tmp_path):
    # A busy machine reads only little before each kill, so kill a few times more than needed.
    found = crash(12, 5, tmp_path, lives_each=3)
    assert found.failures == []
    assert found.kills >= 12
    assert found.compared > 100
    page = markdown(found, "a machine")
    assert f"**Passed**: {found.kills} proxies killed" in page


def test_an_old_version_and_bytes_of_none_are_told(tmp_path):
    truth, key = Truth(tmp_path), KEYS[0]
    version = truth.next_version(key)
    truth.check(key, 0, body_of(key, 0), how="while it is written")
    truth.check(key, 0, body_of(key, version), how="while it is written")
    truth.check(key, 0, body_of(key, version)[5:9], start=5, stop=9, how="a part")
    truth.check(key, 0, body_of(key, version)[-9:], start=-9, how="the last bytes")
    assert truth.wrong == []
    truth.written(key, version)
    truth.check(key, truth.least(key), body_of(key, 0), how="afterwards")
    truth.check(key, truth.least(key), b"?", how="afterwards")
    truth.check(key, truth.least(key), None, how="afterwards")
    old, none, missing = truth.wrong
    assert f"version 0, which is old; wanted range({version}, {version + 1})" in old
    assert "bytes of no version" in none
    assert "no object: bytes of no version" in missing


def test_a_write_that_nobody_was_told_of_is_found_at_the_origin_or_not(tmp_path):
    truth, key = Truth(tmp_path), KEYS[0]
    version = truth.next_version(key)
    truth.look(settled=True)
    assert truth.least(key) == 0
    truth.check(key, 0, body_of(key, version), how="it was not written")
    assert len(truth.wrong) == 1
    version = truth.next_version(key)
    (tmp_path / "data" / key).write_bytes(body_of(key, version))
    truth.look(settled=True)
    assert truth.least(key) == version
    (tmp_path / "data" / key).write_bytes(body_of(key, 0))
    truth.look(settled=True)
    assert truth.wrong[1:] == [f"{key}: the origin lost a write that was acknowledged"]


@pytest.mark.parametrize("ready", [False, True])
def test_damage_counts_until_a_proxy_became_ready(tmp_path, ready):
    """A proxy that died while it started may not have read the damaged files. So the next one may refuse to
    start because of them.
    """
    found = Found(1, 1)
    home = SimpleNamespace(root=tmp_path, shm=tmp_path, ram=tmp_path / "ram", disk=tmp_path / "disk")
    home.state = tmp_path / "state"
    home.board = SimpleNamespace(cells=[0] * 64, died_at="", phases=[])
    home.said = lambda: f"error: {tmp_path} is damaged; remove it"
    home.over_capacity = list
    family = Family.__new__(Family)
    family._home, family._found, family._number = home, found, 0
    family._truth, family._scribe, family._origin, family._whole = Truth(tmp_path), Scribe(0), None, False
    family._bury("killed while it starts", -signal.SIGKILL, ready=ready)
    family._bury("killed under load", 2, ready=False)
    assert (found.refused, len(found.failures)) == ((0, 1) if ready else (1, 0))


def test_scores_that_are_torn_or_went_back_are_told():
    scribe = Scribe(0)
    scribe._number = 9
    for value, least in ((5, 0), (7, 5), (6, 7)):
        scribe._check_scores(np.full(24, value, "<f4").tobytes(), least)
    assert scribe.wrong == ["scores went back from 7 to 6"]
    scribe._check_scores(np.array([8] * 23 + [9], "<f4").tobytes(), 0)
    assert "scores were torn" in scribe.wrong[1]
    scribe._check_manifest(b'{"bucket": "data", "key": "fixed/05"}')
    assert "the manifest is none of" in scribe.wrong[2]


def test_damage_damages(tmp_path):
    done = set()
    for seed in range(60):
        path = tmp_path / str(seed)
        path.write_bytes(bytes(range(1, 256)) * 40)
        done.add(spoil(path, random.Random(seed)))
        assert not path.exists() or path.read_bytes() != bytes(range(1, 256)) * 40
    assert done == set(KINDS)
