"""The page of the control listener in a real Chromium: it shows the right things, and is easy to use for
everyone.

With SHADEPROXY_PAGE_PICTURES the pictures of docs/pictures/ are written to that directory.
"""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.served import readyz, wait_for

from .devtools import opened
from .fake_origin import running

LIVE = "document.querySelector('#state').dataset.state === 'live'"
# Collects each text of the state from the first one on.
COLLECT = """
window.states = [];
addEventListener("DOMContentLoaded", () => {
  const node = document.querySelector("#state");
  if (!node) return;
  const note = () => states.push(node.innerText);
  note();
  new MutationObserver(note).observe(node, {childList: true, characterData: true, subtree: true});
});
"""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "CONTROL_TOKEN": "cl\u00e9 s3cret",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("chromium")) as tab:
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=COLLECT)
        yield tab


@pytest.fixture
def tab(browser):
    browser.problems.clear()
    browser.show(1100, 1300)
    yield browser
    browser.go("about:blank")
    assert browser.problems == []


@pytest.fixture
def proxy(serve, fake_origin):
    for n in range(8):
        fake_origin.objects[f"/data/{n}"] = bytes([n]) * 50_000
    return serve(None, ENVIRONMENT, origin__endpoint=fake_origin.url, origin__credentials="anonymous")


PICTURES = os.environ.get("SHADEPROXY_PAGE_PICTURES")


def keep_picture(tab, name):
    if PICTURES:
        from PIL import Image

        path = Path(PICTURES) / f"page-{name}.png"
        tab.picture(path)
        with Image.open(path) as taken:
            few = taken.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def violations(tab):
    """Return what axe-core finds, of any impact: its rule, and the elements."""
    found = find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("needs axe-core: pip install axe-playwright-python")
    script = Path(found.submodule_search_locations[0]) / "axe.min.js"
    tab.run(script.read_text(encoding="utf-8") + ";0")
    found = tab.run("axe.run(document).then((told) => told.violations)")
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


def read(proxy, times=3):
    client = proxy.client()
    for number in range(times):
        for n in range(8):
            client.get_object(Bucket="data", Key=str(n))["Body"].read()
        if number == 0:
            with pytest.raises(client.exceptions.NoSuchKey):
                client.get_object(Bucket="data", Key="none")


def begin_job(proxy):
    """Register a job of eight samples. The announced epoch names six of them."""
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
    tab.go(proxy.control)
    tab.until(LIVE)
    tab.until("document.querySelector('#findings').innerText === 'Nothing is wrong.'")
    tab.until("past.times.length > 0")
    keep_picture(tab, "idle")
    read(proxy)
    begin_job(proxy)
    tab.until("document.querySelector('#buckets').innerText.includes('data')")
    tab.until("Math.max(...past.series.hits_ram_per_s) > 0")
    about = tab.text("#about")
    assert about.startswith("version ")
    assert "policy default" in about
    assert "origin http://127.0.0.1:" in about
    assert "404\tnot found\t1\tGetObject 1" in tab.text("#errors")
    assert tab.text("#tiers").splitlines()[1].startswith("ram\t")
    job = tab.text("#jobs")
    for line in ("resnet50", "epoch\n4", "samples read\n4 of 8", "distinct samples\n6 of 8"):
        assert line in job
    assert "waits for data\n25.0 %" in job
    drawn = "document.querySelectorAll('canvas').length === 6 && [...document.querySelectorAll('canvas')]"
    assert tab.run(f"{drawn}.every((one) => one.width > 300)")
    label = tab.run("document.querySelector('[role=img]').getAttribute('aria-label')")
    assert label.startswith("Reads by source over the last hour; now: RAM ")


JOB = """jobCard("resnet50", {order: null, progress: {}, count: 0, world_size: 1, live: true, needs: {
  samples_per_s: {need: 1000, got: 800, kept: false}}}, undefined).innerText"""
EVIL = "<img src=x onerror='window.taken = 1'>"


def test_needs_of_a_job_are_shown_and_names_are_only_text(proxy, tab):
    tab.go(proxy.control)
    tab.until(LIVE)
    text = tab.run(JOB)
    for line in ("samples_per_s need1000", "samples_per_s got800", "samples_per_s keptfalse"):
        assert line in text.replace("\n", "")
    reads = {"requests": 1, "hit_ratio": 1, "byte_hit_ratio": 1, "bytes": 1}
    tab.run(f"showBuckets({json.dumps({'buckets': {EVIL: reads}})})")
    assert tab.text("#buckets tbody td") == EVIL
    finding = {"severity": "wrong", "name": EVIL, "cause": EVIL, "remedy": EVIL}
    tab.run(f"showFindings({json.dumps({'findings': [finding]})})")
    assert EVIL in tab.text("#findings")
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert tab.run("window.taken === undefined")


def test_it_never_says_live_while_the_origin_is_down(serve, tab):
    proxy = serve(origin__endpoint="http://127.0.0.1:1", origin__credentials="anonymous")
    wait_for(lambda: proxy.stats()["origin"]["health"]["answering"] is False)
    tab.go(proxy.control)
    tab.until("document.querySelector('#state').dataset.state === 'down'")
    tab.until("document.querySelector('#findings').innerText.includes('origin unreachable')")
    assert tab.text("#state") == "origin down: cached objects are still served"
    assert "state\ndown" in tab.text("#origin")
    assert "wrong: origin unreachable" in tab.text("#findings")
    assert "To do: check that it runs" in tab.text("#findings")
    assert not [text for text in tab.run("states") if "live" in text]
    keep_picture(tab, "origin-down")


@pytest.mark.slow
def test_it_shows_that_the_origin_died_although_nobody_reads(serve, tab):
    with running() as origin:
        proxy = serve(origin__endpoint=origin.url, origin__credentials="anonymous")
        tab.go(proxy.control)
        tab.until(LIVE)
        assert "state\nup" in tab.text("#origin")
        # The doctor, which would find it too, has ended and is not asked again.
        tab.until("document.querySelector('#findings').innerText === 'Nothing is wrong.'")
        tab.run("askedDoctor = Infinity")
    tab.until("document.querySelector('#state').dataset.state === 'down'")
    assert "state\ndown" in tab.text("#origin")
    assert readyz(proxy)[1]["warnings"] == ["the origin does not answer"]


def test_an_origin_that_is_silent_from_the_start_is_never_live(serve, fake_origin, tab):
    fake_origin.gate.clear()
    proxy = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous")
    tab.go(proxy.control)
    tab.until("document.querySelector('#state').dataset.state === 'down'")
    assert set(tab.run("states")) <= {"connecting", "checking the origin", tab.text("#state")}


# The answers of the proxy, as if nothing were known of its origin.
UNKNOWN = """
const asked = fetch;
window.fetch = async (path, how) => {
  const answer = await asked(path, how);
  if (path !== "v1/stats") return answer;
  const stats = await answer.json();
  stats.origin.health.answering = null;
  return new Response(JSON.stringify(stats));
};
0"""


def test_before_anything_is_known_of_the_origin_it_is_neither_live_nor_down(proxy, tab):
    tab.go(proxy.control)
    tab.until(LIVE)
    tab.run(UNKNOWN)
    tab.until("document.querySelector('#state').innerText === 'checking the origin'")
    assert "state\nchecking" in tab.text("#origin")
    assert "origin\nchecking" in tab.text("#cards")


@pytest.mark.slow
def test_it_is_not_live_while_the_proxy_hangs(proxy, tab):
    tab.go(proxy.control)
    tab.until(LIVE)
    os.kill(proxy.process.pid, signal.SIGSTOP)
    try:
        tab.until("document.querySelector('#state').dataset.state === 'lost'")
        assert tab.text("#state") == "no answer from the proxy: the numbers are old"
    finally:
        os.kill(proxy.process.pid, signal.SIGCONT)
    tab.until(LIVE)


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
    tab.go(proxy.control)
    tab.until(LIVE)
    # Pages may still move between the tiers after the last read.
    wait_for(lambda: evictions_shown(tab) == evictions_counted(proxy))
    assert {reason for counted in evictions_counted(proxy) for reason in counted} >= {
        "policy", "demoted", "promoted", "invalidated",
    }  # fmt: skip
    job = proxy.stats()["jobs"]["resnet50"]["epochs"]["3"]
    assert 0 != job["hits_ram"] != job["hits_disk"] != 0
    for name, hits in (("RAM", job["hits_ram"]), ("disk", job["hits_disk"])):
        assert f"hits from {name}\n{100 * hits / job['requests']:.1f} %" in tab.text("#jobs")


def evictions_counted(proxy):
    """Return the evictions of each tier, by reason."""
    tiers = proxy.stats()["tiers"]
    return [
        {reason: count for reason, count in tiers[name]["evictions"].items() if count}
        for name in ("ram", "disk")
    ]


def evictions_shown(tab):
    cells = tab.run("[...document.querySelectorAll('#tiers td:last-child')].map((one) => one.innerText)")
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
    tab.go(proxy.control)
    tab.until(LIVE)
    for line in ("in flight\n0\nwaiting", "errors\n0", "throttled\n0", "last failure\nnone"):
        assert line in tab.text("#origin")
    fake_origin.fail_next = 1
    get(proxy, "/data/0")
    fake_origin.failing = (500, "InternalError")
    with pytest.raises(urllib.error.HTTPError):
        get(proxy, "/data/1")
    fake_origin.failing = None
    fake_origin.gate.clear()
    waiting = threading.Thread(target=get, args=(proxy, "/data/2"))
    waiting.start()
    tab.until("document.querySelector('#origin').innerText.includes('in flight\\n1\\nwaiting')")
    fake_origin.gate.set()
    waiting.join()
    tab.until("document.querySelector('#origin').innerText.includes('in flight\\n0\\nwaiting')")
    shown = tab.text("#origin")
    origin = proxy.stats()["origin"]
    assert (origin["errors"], origin["health"]["throttled"]) == (1, 1)
    for line in (
        f"errors\n{origin['errors']}",
        f"throttled\n{origin['health']['throttled']}",
        "last failure\nOriginUnavailable, ",
        f"latency p50 / p99\n{in_words(tab, origin['latency_s']['p50'])} / ",
    ):
        assert line in shown
    by_kind = [line.split("\t")[:2] for line in tab.text("#kinds").splitlines()[1:]]
    assert by_kind == [[kind, str(one["requests"])] for kind, one in origin["by_kind"].items()]


def get(proxy, path):
    urllib.request.urlopen(proxy.s3 + path, timeout=20).close()


def in_words(tab, seconds):
    return tab.run(f"time({seconds})")


def test_it_says_when_the_proxy_is_gone(proxy, tab):
    tab.go(proxy.control)
    tab.until(LIVE)
    proxy.stop()
    tab.until("document.querySelector('#state').dataset.state === 'lost'")
    assert tab.text("#state").startswith("not reachable: ")


def test_a_token_is_typed_in_by_keyboard_and_stays_in_the_tab(serve, bucket_directory, tab):
    proxy = serve(
        None, ENVIRONMENT, origin__kind="file", origin__path=str(bucket_directory),
        control__token="env:CONTROL_TOKEN",
    )  # fmt: skip
    tab.go(proxy.control)
    tab.until("!document.querySelector('#token-form').hidden")
    assert tab.text("#state") == "locked: type the control token"
    assert tab.run("document.querySelector('#numbers').hidden")
    assert violations(tab) == []
    for token, told in (("wrong", "The token is wrong."), (ENVIRONMENT["CONTROL_TOKEN"], "")):
        assert tab.run("document.activeElement.id") == "token"
        tab.type(token)
        tab.press("Enter")
        tab.until(f"document.querySelector('#token-error').innerText === {json.dumps(told)} || {LIVE}")
    tab.until(LIVE)
    assert tab.run("document.querySelector('#token-form').hidden")
    assert tab.run("sessionStorage.length") == 1
    assert tab.run("localStorage.length") == 0
    assert tab.run("document.cookie") == ""
    requested = tab.run("performance.getEntriesByType('resource').map((one) => one.name)")
    assert len(requested) > 5
    assert not [url for url in [*requested, tab.run("location.href")] if "s3cret" in url]


def test_a_long_operation_shows_its_progress_and_is_cancelled_by_keyboard(serve, bucket_directory, tab):
    for n in range(2_000):
        (bucket_directory / "data" / f"{n:04}").write_bytes(bytes([n % 256]) * 1_000)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), origin__delay="2 s")
    started = json.loads(proxy.call("POST", "/v1/warm", {"uri": "s3://data/"}))
    tab.go(proxy.control)
    tab.until("document.querySelector('#operations').innerText.includes('running')")
    tab.until("document.querySelector('#operations progress').value > 0")
    tab.run("document.querySelector('#operations button').focus()")
    before = tab.run("document.querySelector('#operations .what').innerText")
    tab.until(f"document.querySelector('#operations .what').innerText !== {json.dumps(before)}")
    # The numbers changed, and the button kept the focus.
    assert tab.run("document.activeElement.getAttribute('aria-label')") == "Cancel warm of s3://data/"
    tab.press("Enter")
    tab.until("document.querySelector('#operations').innerText.includes('cancelled')")
    assert proxy.get(f"/v1/operations/{started['id']}")["state"] == "cancelled"
    assert tab.run("document.querySelector('#operations button').hidden")


def test_a_purge_shows_its_progress_and_is_cancelled(proxy, tab):
    """A purge of a test is too short to be seen, so the browser gets the listener's answers from here."""
    tab.go(proxy.control)
    purge = {
        "id": "abc", "kind": "purge", "uri": "s3://data/", "dry_run": False, "state": "running", "done": 3,
        "total": 12, "pages": 40, "bytes": 2048, "error": "",
    }  # fmt: skip
    tab.run(f"""(() => {{
      const real = window.fetch, purge = {json.dumps(purge)};
      window.fetch = (url, options) => {{
        if (!String(url).includes("v1/operations")) return real(url, options);
        if (options && options.method === "DELETE") purge.state = "cancelled";
        return Promise.resolve(new Response(JSON.stringify({{ operations: [purge] }})));
      }};
      return true;
    }})()""")
    shown = "document.querySelector('#operations').innerText"
    tab.until(f"{shown}.includes('purge s3://data/: running, 3 of 12 objects, 2.0 KiB')")
    assert tab.run("document.querySelector('#operations progress').value") == 3
    name = tab.run("document.querySelector('#operations button').getAttribute('aria-label')")
    assert name == "Cancel purge of s3://data/"
    tab.run("document.querySelector('#operations button').click()")
    tab.until(f"{shown}.includes('purge s3://data/: cancelled')")
    assert tab.run("document.querySelector('#operations button').hidden")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_400_pixels_and_axe_has_nothing_to_say(proxy, tab, dark):
    tab.show(400, 1700, dark=dark)
    reading = threading.Thread(target=read, args=(proxy, 4_000 if PICTURES else 20))
    reading.start()
    begin_job(proxy)
    tab.go(proxy.control)
    tab.until(LIVE)
    tab.until(f"past.times.length > {8 * bool(PICTURES)}")
    tab.until("document.querySelector('#errors').innerText.includes('404')")
    assert tab.run("document.documentElement.scrollWidth") <= 400
    keep_picture(tab, "narrow-dark" if dark else "narrow")
    assert violations(tab) == []
    tab.show(1100, 1300, dark=dark)
    tab.until("document.querySelector('figure').clientWidth > 400")
    keep_picture(tab, "dark" if dark else "load")
    reading.join()
