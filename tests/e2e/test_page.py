"""The dashboard of the control listener in a real Chromium: it shows the right values, and people with
disabilities can use it.

If SHADEPROXY_PAGE_PICTURES names a directory, the test writes the pictures of docs/pictures/ to it.
"""

import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path

import msgspec
import pytest

from shadeproxy.cluster.node_stats import NodeStats
from shadeproxy.cluster.status import ClusterSummary, NodeStatus
from tests.support.served import readyz, wait_for

from .fake_origin import running
from .tab import LIMIT_S, WIDE, expect, expect_state, expect_within, go_live, opened, started, violations

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "CONTROL_TOKEN": "cl\u00e9 s3cret",
}


@pytest.fixture(scope="module")
def browser():
    with started() as browser:
        yield browser


@pytest.fixture
def tab(request, browser):
    with opened(browser, getattr(request, "param", {})) as tab:
        yield tab


@pytest.fixture
def proxy(serve, fake_origin):
    for n in range(8):
        fake_origin.objects[f"/data/{n}"] = bytes([n]) * 50_000
    return serve(None, ENVIRONMENT, origin__endpoint=fake_origin.url, origin__credentials="anonymous")


PICTURES = os.environ.get("SHADEPROXY_PAGE_PICTURES")
# The doctor of a busy machine finds that its event loop is late.
CALM = re.compile(r"Nothing is wrong\.|event loop late")


def keep_picture(tab, name):
    if PICTURES:
        from PIL import Image

        path = Path(PICTURES) / f"page-{name}.png"
        tab.screenshot(path=path)
        with Image.open(path) as taken:
            few = taken.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def read(proxy, rounds=range(3)):
    client = proxy.client()
    for number in rounds:
        for n in range(8):
            client.get_object(Bucket="data", Key=str(n))["Body"].read()
            time.sleep(0.005)  # Chromium needs the CPU too.
        if number == 0:
            with pytest.raises(client.exceptions.NoSuchKey):
                client.get_object(Bucket="data", Key="none")


@contextmanager
def reading(proxy):
    """Read objects in a thread until the block ends."""
    ended = threading.Event()
    thread = threading.Thread(target=read, args=(proxy, takewhile(lambda _: not ended.is_set(), count())))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def begin_job(proxy):
    """Register a job of eight samples, and announce an epoch that names six of them."""
    entries = "\n".join(json.dumps({"bucket": "data", "key": str(n)}) for n in range(8))
    for path, kind, body in (
        ("/v1/datasets/set", "application/x-ndjson", entries.encode()),
        ("/v1/jobs/resnet50", "application/json", b'{"dataset": "set"}'),
        ("/v1/jobs/resnet50/epochs/4/order?rank=0", "application/json",
         b'{"ids": [0, 1, 2, 3, 4, 5, 0, 1]}'),
    ):  # fmt: skip
        request = urllib.request.Request(proxy.control + path, data=body, method="PUT")
        request.add_header("Content-Type", kind)
        urllib.request.urlopen(request, timeout=10).close()
    report = {"epoch": 4, "rank": 0, "position": 4, "stall_s": 1.0, "compute_s": 3.0}
    proxy.call("POST", "/v1/jobs/resnet50/progress", report)


def test_it_shows_reads_errors_tiers_and_jobs(proxy, tab):
    go_live(tab, proxy.control)
    expect(tab.locator("#findings")).to_have_text(CALM)
    wait_for(lambda: tab.evaluate("past.times.length > 0"), LIMIT_S)
    keep_picture(tab, "idle")
    read(proxy)
    begin_job(proxy)
    # The page may have asked the proxy while the objects were read, so wait for what came last.
    expect_within(tab, "#jobs", "waits for data 25.0 %")
    wait_for(lambda: tab.evaluate("Math.max(...past.series.hits_ram_per_s) > 0"), LIMIT_S)
    assert "data" in tab.inner_text("#buckets")
    about = tab.inner_text("#about")
    assert about.startswith("version ")
    assert "policy default" in about
    assert "origin http://127.0.0.1:" in about
    assert "404\tnot found\t1\tGetObject 1" in tab.inner_text("#errors")
    assert tab.inner_text("#tiers").splitlines()[1].startswith("ram\t")
    job = tab.inner_text("#jobs")
    for line in ("resnet50", "epoch\n4", "samples read\n4 of 8", "distinct samples\n6 of 8"):
        assert line in job
    widths = tab.locator("canvas").evaluate_all("(all) => all.map((one) => one.width)")
    assert len(widths) == 6
    assert min(widths) > 300
    label = tab.locator("[role=img]").first.get_attribute("aria-label")
    assert label.startswith("Reads by source over the last hour; now: RAM ")
    assert re.search(r", joined a fetch [\d.]+[^,]*, past the cache [\d.]+", label)
    sources = tab.evaluate("CHARTS[0].series.map(([_label, name]) => name.replace('_per_s', ''))")
    reads = proxy.stats()["totals"]
    assert sum(reads[source] for source in sources) == reads["requests"] == 24


JOB = """jobCard("resnet50", {order: null, progress: {}, count: 0, world_size: 1, live: true, needs: {
  samples_per_s: {need: 1000, got: 800, kept: false}}}, undefined).innerText"""
EVIL = "<img src=x onerror='window.taken = 1'>"
# Show everything in one step, because the page replaces the values by the proxy's answers every two seconds.
SHOW_EVIL = """([stats, report]) => {
  showBuckets(stats);
  showFindings(report);
  const shown = (selector) => document.querySelector(selector).innerText;
  return [shown("#buckets tbody td"), shown("#findings"), document.images.length];
}"""


def test_needs_of_a_job_are_shown_and_names_are_only_text(proxy, tab):
    go_live(tab, proxy.control)
    text = tab.evaluate(JOB)
    for line in ("samples_per_s need1000", "samples_per_s got800", "samples_per_s keptfalse"):
        assert line in text.replace("\n", "")
    reads = {"requests": 1, "hit_ratio": 1, "byte_hit_ratio": 1, "bytes": 1}
    finding = {"severity": "wrong", "name": EVIL, "cause": EVIL, "remedy": EVIL}
    evil = [{"buckets": {EVIL: reads}}, {"findings": [finding]}]
    bucket, findings, images = tab.evaluate(SHOW_EVIL, evil)
    assert bucket == EVIL
    assert EVIL in findings
    assert images == 0
    assert tab.evaluate("window.taken === undefined")


UNREPORTED = """jobCard("plain", null, {requests: 5, hits_ram: 1, hits_disk: 1, stall_s: 0, compute_s: 0,
  wall_s: 9, epochs: {}}).innerText"""
SET_BACK = """(() => {
  const past_s = past.times.at(-1) ?? 0, before = {...past};
  takeHistory({times: [past_s - 3600, past_s - 3595], series: {hit_ratio: [0, 1]}});
  const shown = [past.times.map((time) => time - past_s), latest("hit_ratio")];
  Object.assign(past, before);
  return shown;
})()"""


def test_a_job_that_reported_no_waiting_is_not_said_to_wait_for_nothing(proxy, tab):
    go_live(tab, proxy.control)
    assert "waits for datanot reported" in tab.evaluate(UNREPORTED).replace("\n", "")


def test_a_clock_that_is_set_back_does_not_keep_old_rates_on_the_page(proxy, tab):
    go_live(tab, proxy.control)
    wait_for(lambda: tab.evaluate("past.times.length > 1"), LIMIT_S)
    assert tab.evaluate(SET_BACK) == [[-3600, -3595], 1]


def test_it_never_says_live_while_the_origin_is_down(serve, tab):
    proxy = serve(origin__endpoint="http://127.0.0.1:1", origin__credentials="anonymous")
    wait_for(lambda: proxy.stats()["origin"]["health"]["answering"] is False)
    tab.goto(proxy.control)
    expect_state(tab, "down")
    expect_within(tab, "#findings", "origin unreachable")
    assert tab.inner_text("#state") == "origin down: cached objects are still served"
    assert "state\ndown" in tab.inner_text("#origin")
    assert "wrong: origin unreachable" in tab.inner_text("#findings")
    assert "To do: check that it runs" in tab.inner_text("#findings")
    assert not [text for text in tab.evaluate("states") if "live" in text]
    keep_picture(tab, "origin-down")


@pytest.mark.slow
def test_it_shows_that_the_origin_died_while_no_client_reads(serve, tab):
    with running() as origin:
        proxy = serve(origin__endpoint=origin.url, origin__credentials="anonymous")
        go_live(tab, proxy.control)
        assert "state\nup" in tab.inner_text("#origin")
        # The doctor would find the fault too, but the page has asked it before and asks no more.
        expect(tab.locator("#findings")).to_have_text(CALM)
        tab.evaluate("askedDoctor = Infinity")
    expect_state(tab, "down")
    assert "state\ndown" in tab.inner_text("#origin")
    assert readyz(proxy)[1]["warnings"] == ["the origin does not answer"]


def test_an_origin_that_is_silent_from_the_start_is_never_live(serve, fake_origin, tab):
    fake_origin.gate.clear()
    proxy = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    tab.goto(proxy.control)
    expect_state(tab, "down")
    assert set(tab.evaluate("states")) <= {"connecting", "checking the origin", tab.inner_text("#state")}


def test_before_anything_is_known_of_the_origin_it_is_neither_live_nor_down(proxy, tab):
    go_live(tab, proxy.control)
    stats = proxy.stats()
    stats["origin"]["health"]["answering"] = None
    tab.route("**/v1/stats", lambda route: route.fulfill(json=stats))
    expect(tab.locator("#state")).to_have_text("checking the origin")
    assert "state\nchecking" in tab.inner_text("#origin")
    assert "origin\nchecking" in tab.inner_text("#cards")


@pytest.mark.slow
def test_it_is_not_live_while_the_proxy_hangs(proxy, tab):
    go_live(tab, proxy.control)
    os.kill(proxy.process.pid, signal.SIGSTOP)
    try:
        expect_state(tab, "lost")
        assert tab.inner_text("#state") == "no answer from the proxy: the numbers are old"
    finally:
        os.kill(proxy.process.pid, signal.SIGCONT)
    expect_state(tab, "live")


def test_a_job_shows_from_which_tiers_it_reads_and_the_tiers_why_pages_left(serve, bucket_directory, tab):
    for n in range(300):
        (bucket_directory / "data" / str(n)).write_bytes(bytes([n % 256]) * 50_000)
    proxy = serve(
        origin__kind="file", origin__path=str(bucket_directory),
        cache__ram__capacity="4 MiB", cache__disk__capacity="8 MiB", policy__name="lru",
    )  # fmt: skip
    client = proxy.client()
    client.meta.events.register("before-sign.s3.GetObject", name_job)
    for keys in (range(300), range(299, 0, -1), range(290, 300)):
        for n in keys:
            client.get_object(Bucket="data", Key=str(n))["Body"].read()
    client.put_object(Bucket="data", Key="295", Body=b"new")
    go_live(tab, proxy.control)
    # Pages may still move between the tiers after the last read.
    wait_for(lambda: evictions_shown(tab) == evictions_counted(proxy))
    assert {reason for counted in evictions_counted(proxy) for reason in counted} >= {
        "policy", "demoted", "promoted", "invalidated",
    }  # fmt: skip
    job = proxy.stats()["jobs"]["resnet50"]["epochs"]["3"]
    assert 0 != job["hits_ram"] != job["hits_disk"] != 0
    for name, hits in (("RAM", job["hits_ram"]), ("disk", job["hits_disk"])):
        assert f"hits from {name}\n{100 * hits / job['requests']:.1f} %" in tab.inner_text("#jobs")


def evictions_counted(proxy):
    """Return the counted evictions of each tier, by reason."""
    tiers = proxy.stats()["tiers"]
    return [
        {reason: count for reason, count in tiers[name]["evictions"].items() if count}
        for name in ("ram", "disk")
    ]


def evictions_shown(tab):
    cells = tab.locator("#tiers td:last-child").all_inner_texts()
    words = [[shown.rsplit(" ", 1) for shown in cell.split(", ")] for cell in cells]
    return [{reason: int(count) for reason, count in pairs} for pairs in words]


def name_job(request, **_):
    request.headers["x-shade-job"] = "resnet50;epoch=3;rank=0"


def test_it_shows_latency_errors_throttling_and_requests_under_way_of_the_origin(serve, fake_origin, tab):
    fake_origin.objects = {f"/data/{n}": bytes([n]) * 1_000 for n in range(3)}
    proxy = serve(
        origin__endpoint=fake_origin.url, origin__credentials="anonymous",
        origin__retry__backoff="1 ms", origin__retry__attempts="2",
    )  # fmt: skip
    go_live(tab, proxy.control)
    for line in ("in flight\n0\nwaiting", "errors\n0", "throttled\n0", "last failure\nnone"):
        assert line in tab.inner_text("#origin")
    fake_origin.fail_next = 1
    get(proxy, "/data/0")
    fake_origin.failing = (500, "InternalError")
    with pytest.raises(urllib.error.HTTPError):
        get(proxy, "/data/1")
    fake_origin.failing = None
    fake_origin.gate.clear()
    waiting = threading.Thread(target=get, args=(proxy, "/data/2"))
    waiting.start()
    expect_within(tab, "#origin", "in flight 1 waiting")
    fake_origin.gate.set()
    waiting.join()
    expect_within(tab, "#origin", "in flight 0 waiting")
    shown = tab.inner_text("#origin")
    origin = proxy.stats()["origin"]
    assert (origin["errors"], origin["health"]["throttled"]) == (1, 1)
    for line in (
        f"errors\n{origin['errors']}",
        f"throttled\n{origin['health']['throttled']}",
        "last failure\nOriginUnavailable, ",
        f"latency p50 / p99\n{in_words(tab, origin['latency_s']['p50'])} / ",
    ):
        assert line in shown
    by_kind = [line.split("\t")[:2] for line in tab.inner_text("#kinds").splitlines()[1:]]
    assert by_kind == [[kind, str(one["requests"])] for kind, one in origin["by_kind"].items()]


def get(proxy, path):
    urllib.request.urlopen(proxy.s3 + path, timeout=20).close()


def in_words(tab, seconds):
    return tab.evaluate(f"time({seconds})")


def test_it_says_when_the_proxy_is_gone(proxy, tab):
    go_live(tab, proxy.control)
    proxy.stop()
    expect_state(tab, "lost")
    assert tab.inner_text("#state").startswith("not reachable: ")


def test_a_token_is_typed_in_by_keyboard_and_stays_in_the_tab(serve, bucket_directory, tab):
    proxy = serve(
        None, ENVIRONMENT, origin__kind="file", origin__path=str(bucket_directory),
        control__token="env:CONTROL_TOKEN",
    )  # fmt: skip
    tab.goto(proxy.control)
    expect(tab.locator("#token-form")).to_be_visible()
    assert tab.inner_text("#state") == "locked: type the control token"
    assert tab.is_hidden("#numbers")
    assert violations(tab) == []
    type_token(tab, "wrong")
    expect(tab.locator("#token-error")).to_have_text("The token is wrong.")
    type_token(tab, ENVIRONMENT["CONTROL_TOKEN"])
    expect_state(tab, "live")
    assert tab.is_hidden("#token-form")
    assert tab.evaluate("sessionStorage.length") == 1
    assert tab.evaluate("localStorage.length") == 0
    assert tab.evaluate("document.cookie") == ""
    requested = tab.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(requested) > 5
    assert not [url for url in [*requested, tab.evaluate("location.href")] if "s3cret" in url]


def type_token(tab, token):
    """Type the token into the field that the page has focused."""
    assert tab.evaluate("document.activeElement.id") == "token"
    tab.keyboard.type(token)
    tab.keyboard.press("Enter")


def test_a_long_operation_shows_its_progress_and_is_cancelled_by_keyboard(serve, bucket_directory, tab):
    for n in range(2_000):
        (bucket_directory / "data" / f"{n:04}").write_bytes(bytes([n % 256]) * 1_000)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), origin__delay="2 s")
    started = json.loads(proxy.call("POST", "/v1/warm", {"uri": "s3://data/"}))
    tab.goto(proxy.control)
    expect_within(tab, "#operations", "running")
    wait_for(lambda: tab.locator("#operations progress").evaluate("(bar) => bar.value > 0"), LIMIT_S)
    tab.focus("#operations button")
    before = tab.inner_text("#operations .what")
    expect(tab.locator("#operations .what")).not_to_have_text(before)
    # The page has updated the numbers, and the button still has the focus.
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Cancel warm of s3://data/"
    tab.keyboard.press("Enter")
    expect_within(tab, "#operations", "cancelled")
    assert proxy.get(f"/v1/operations/{started['id']}")["state"] == "cancelled"
    assert tab.is_hidden("#operations button")


def test_a_purge_shows_its_progress_and_is_cancelled(proxy, tab):
    """A purge shows its progress and can be cancelled. A real purge of this cache is too short to be seen, so
    the test answers the browser in place of the listener.
    """
    tab.goto(proxy.control)
    purge = {
        "id": "abc", "kind": "purge", "uri": "s3://data/", "dry_run": False, "state": "running", "done": 3,
        "total": 12, "pages": 40, "bytes": 2048, "error": "",
    }  # fmt: skip

    def answer(route):
        if route.request.method == "DELETE":
            purge["state"] = "cancelled"
        route.fulfill(json={"operations": [purge]})

    tab.route(re.compile("/v1/operations"), answer)
    expect_within(tab, "#operations", "purge s3://data/: running, 3 of 12 objects, 2.0 KiB")
    assert tab.locator("#operations progress").evaluate("(bar) => bar.value") == 3
    assert tab.get_attribute("#operations button", "aria-label") == "Cancel purge of s3://data/"
    tab.click("#operations button")
    expect_within(tab, "#operations", "purge s3://data/: cancelled")
    assert tab.is_hidden("#operations button")


NONE = "\N{EN DASH}"


def node(name, **changes):
    return NodeStatus(
        **{"node": name, "weight": 4.0, "share": 0.25, "away": False, "s3": "", "control": "", "peer": "",
           "release": "1"} | changes
    )  # fmt: skip


def answer_for_cluster(tab, summary, *stats):
    """Let the page receive these answers to its questions about the cluster."""
    tab.route("**/v1/cluster", lambda route: route.fulfill(body=msgspec.json.encode(summary)))
    asked = re.compile(r"/v1/stats\?cluster=1$")
    tab.route(asked, lambda route: route.fulfill(body=msgspec.json.encode({"nodes": stats})))


def test_the_proxies_of_a_cluster_are_shown_and_none_without_a_cluster(proxy, tab):
    go_live(tab, proxy.control)
    assert tab.is_hidden("#cluster-section")
    nodes = [
        node("a", share=0.5), node("b", skipped=True), node("c", away=True, share=0.0),
        node("d", weight=0.0, share=0.0), node("e"),
    ]  # fmt: skip
    summary = ClusterSummary(name="trainers", pages="owned", node="a", lease_s=2.5, nodes=nodes)
    answer_for_cluster(
        tab,
        summary,
        NodeStats(node="a", reads=8, hits=6, relayed=1234, lease_s=2.5),
        NodeStats(node="b", reads=10, hits=1, relayed=5, lease_s=1.0),
        NodeStats(node="d"),
        NodeStats(node="e", problem="10.0.0.5:9002 gave no answer in 2 s"),
    )
    expect(tab.locator("#cluster-section")).to_be_visible()
    assert [line.split("\t") for line in tab.inner_text("#nodes").splitlines()] == [
        ["proxy", "state", "share", "hit ratio", "relayed", "lease"],
        ["a (this one)", "here", "50.0 %", "75.0 %", "1,234", "2.5 s"],
        ["b", "reads go past it", "25.0 %", "10.0 %", "5", "1.0 s"],
        ["c", "away", "0.0 %", NONE, NONE, NONE],
        ["d", "drained", "0.0 %", NONE, "0", "none"],
        ["e", "10.0.0.5:9002 gave no answer in 2 s", "25.0 %", NONE, NONE, NONE],
    ]
    tab.unroute("**/v1/cluster")
    local = msgspec.structs.replace(summary, pages="local", problem="10.0.0.9:6379 gave no answer in 1 s")
    tab.route("**/v1/cluster", lambda route: route.fulfill(body=msgspec.json.encode(local)))
    expect_within(
        tab, "#nodes", f"a (this one) 10.0.0.9:6379 gave no answer in 1 s {NONE} {NONE} {NONE} 2.5 s"
    )


# Such a browser lays a page out 980 pixels wide, unless the page asks for the width of the device.
TELEPHONE = {"viewport": {"width": 400, "height": 1700}, "is_mobile": True}


@pytest.mark.parametrize("tab", [TELEPHONE], indirect=True, ids=["telephone"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_400_pixels_and_axe_has_nothing_to_say(proxy, tab, colours):
    tab.emulate_media(color_scheme=colours)
    summary = ClusterSummary(name="trainers", pages="owned", node="a" * 16, nodes=[node("a" * 16), node("b")])
    answer_for_cluster(tab, summary, NodeStats(node="b", problem="10.0.0.5:9002 gave no answer in 2 s"))
    with reading(proxy):
        begin_job(proxy)
        go_live(tab, proxy.control)
        wait_for(lambda: tab.evaluate("past.times.length") > 8 * bool(PICTURES), LIMIT_S)
        expect_within(tab, "#errors", "404")
        expect_within(tab, "#nodes", "gave no answer")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        keep_picture(tab, {"light": "narrow", "dark": "narrow-dark"}[colours])
        assert violations(tab) == []
        tab.set_viewport_size(WIDE)
        wait_for(lambda: tab.locator("figure").first.evaluate("(one) => one.clientWidth > 400"), LIMIT_S)
        keep_picture(tab, {"light": "load", "dark": "dark"}[colours])
