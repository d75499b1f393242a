"""The commands pin, unpin and warm against a real ``shadeproxy serve``."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.support.copied import run_command
from tests.support.served import log_of, wait_for

SIZE = 16_000
KEPT = [f"keep/{number:03d}" for number in range(8)]
OTHERS = [f"rest/{number:03d}" for number in range(40)]


@pytest.fixture
def start(serve, bucket_directory):
    """Run a proxy with policy LRU, whose cache has room for a third of the objects."""
    for key in (*KEPT, *OTHERS):
        path = bucket_directory / "data" / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(key.encode() * (SIZE // len(key)))

    def start(config=None, **settings):
        settings = {"cache__ram__capacity": "360 KiB", "policy__name": "lru"} | settings
        return serve(config, origin__kind="file", origin__path=str(bucket_directory), **settings)

    return start


def post(served, call: str, uri: str, **body) -> dict:
    data = json.dumps({"uri": uri} | body).encode()
    with urllib.request.urlopen(f"{served.control}/v1/{call}", data=data, timeout=30) as answer:
        return json.load(answer)


def watched(served, **body) -> dict:
    """Warm the objects that are not pinned, and return the result of the finished operation."""
    begun = post(served, "warm", "s3://data/rest/", **body)

    def over():
        told = served.get(f"/v1/operations/{begun['id']}")
        return told if told["state"] != "running" else None

    return wait_for(over)


def read(served, keys) -> list[str]:
    sources = []
    for key in keys:
        with urllib.request.urlopen(f"{served.s3}/data/{key}", timeout=30) as answer:
            assert answer.read() == key.encode() * (SIZE // len(key))
            sources.append(answer.headers["x-shade-cache"])
    return sources


def cached(served, key: str) -> bool:
    """Return whether the object is cached. The check itself does not read the object."""
    try:
        return bool(served.get(f"/v1/objects/data/{key}")["pages"])
    except urllib.error.HTTPError:
        return False


def origin_reads(served) -> int:
    return served.stats()["origin"]["by_kind"].get("get", {"requests": 0})["requests"]


def test_pinned_objects_stay_over_pressure_and_kills_until_they_are_unpinned(start):
    served = start()
    nothing = {"uri": "s3://data/keep/0", "objects": 0, "pages": 0, "bytes": 0, "held": 0}
    assert post(served, "pin", "s3://data/keep/0") == nothing
    read(served, KEPT)
    read(served, OTHERS)
    assert all(cached(served, key) for key in KEPT)
    served.stop(signal.SIGKILL)
    served.start_whole()
    read(served, OTHERS)
    assert read(served, KEPT) == ["ram"] * len(KEPT)
    tier = served.stats()["tiers"]["ram"]
    assert len(KEPT) * SIZE < tier["pinned_bytes"] < len(KEPT) * (SIZE + 1000)
    with urllib.request.urlopen(f"{served.control}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert f'shadeproxy_tier_pinned_bytes{{tier="ram"}} {tier["pinned_bytes"]:.1f}' in text
    held = post(served, "unpin", "s3://data/keep/0", dry_run=True)
    assert (held["objects"], held["pages"], held["held"]) == (8, 8, 8)
    freed = post(served, "unpin", "s3://data/keep/0")
    assert (freed["objects"], freed["pages"], freed["held"]) == (8, 8, 0)
    read(served, OTHERS)
    assert not any(cached(served, key) for key in KEPT)


def test_rules_pin_and_a_reload_changes_them(start, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[[rules]]\nbucket = "data"\nprefix = "keep/"\npin = true\n')
    served = start(config)
    read(served, [*KEPT, *OTHERS])
    assert all(cached(served, key) for key in KEPT)
    assert served.get("/v1/pins")["pins"] == [{"uri": "s3://data/keep/", "by": "rules[0]", "since_s": None}]
    with pytest.raises(urllib.error.HTTPError, match="409"):
        post(served, "unpin", "s3://data/keep/")
    config.write_text('[[rules]]\nprefix = "rest/00"\npin = true\n')
    os.kill(served.process.pid, signal.SIGHUP)
    wait_for(lambda: log_of(served, "configuration reloaded"))
    wait_for(lambda: not any(served.get(f"/v1/objects/data/{key}")["pages"][0]["pinned"] for key in KEPT))
    read(served, OTHERS * 2)
    assert not any(cached(served, key) for key in KEPT)
    assert all(cached(served, key) for key in OTHERS[:10])


def test_what_was_warmed_is_read_without_the_origin(start):
    served = start(cache__ram__capacity="8 MiB")
    dry = watched(served, dry_run=True)
    assert (dry["state"], dry["total"], dry["resident"]) == ("done", 40, 0)
    assert dry["bytes"] == dry["total_bytes"] == sum(len(key) * (SIZE // len(key)) for key in OTHERS)
    assert origin_reads(served) == 0
    done = run_command("warm", "s3://data/rest/", "--url", served.control)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "s3://data/rest/: 40 of 40 objects, read 625.0 KiB\n"
    assert read(served, OTHERS) == ["ram"] * len(OTHERS)
    assert origin_reads(served) == 40
    again = watched(served)
    assert (again["resident"], again["bytes"], origin_reads(served)) == (40, 0, 40)


def test_a_warm_is_ended_by_ctrl_c_and_by_the_end_of_the_proxy(serve, fake_origin):
    served = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    wait_for(lambda: fake_origin.asked)  # wait for the proxy's own first request
    fake_origin.gate.clear()
    try:
        command = [sys.executable, "-m", "shadeproxy", "warm", "s3://data/rest/", "--url", served.control]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as watching:
            begun = watching.stderr.readline().split()[1]
            watching.send_signal(signal.SIGINT)
            told = watching.stderr.read()
        assert watching.returncode == 130, told
        assert "cancelled; s3://data/rest/: 0 of 0 objects" in told
        assert served.get(f"/v1/operations/{begun}")["state"] == "cancelled"
        assert post(served, "warm", "s3://data/rest/")["state"] == "running"
        assert served.stop() == 0
    finally:
        fake_origin.gate.set()
    assert [line["state"] for line in log_of(served, "operation ended")] == ["cancelled", "cancelled"]


def test_inspect_shows_what_is_cached_below_a_prefix_and_of_one_key(start):
    served = start()
    post(served, "pin", "s3://data/keep/000")
    read(served, [*KEPT[:3], OTHERS[0]])

    def inspected(uri, *options):
        done = run_command("inspect", uri, *options, "--url", served.control, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = wait_for(lambda: found if len((found := inspected("s3://data/keep/"))["objects"]) == 3 else None)
    assert [one["key"] for one in listed["objects"]] == KEPT[:3]
    first = listed["objects"][0]
    assert (first["tiers"], first["pinned"], first["freshness"]) == ({"ram": 1}, 1, "fresh")
    assert (first["pages"], first["total_pages"], first["bytes"]) == (1, 1, first["size"])
    part = inspected("s3://data/keep/", "--limit", "1", "--start-after", KEPT[0])
    assert ([one["key"] for one in part["objects"]], part["more"], part["next"]) == ([KEPT[1]], 1, KEPT[1])
    assert inspected("s3://data/keep/000")["objects"] == [first]
