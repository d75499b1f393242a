"""Web pages in a real Chromium send requests to both listeners. No page can write or read through them."""

import asyncio
import urllib.error
import urllib.request

import boto3
import pytest
from botocore.config import Config

from .chromium import chromium, script, visit

SECRET = b"the secret of the bucket"

WRITES = """
const out = {}, s3 = given.s3, doc = "<Delete><Object><Key>kept</Key></Object></Delete>";
const halves = {"<Delete><Object><Key>kept</Key></Object><x a": "'1'/></Delete>"};
out.form = await outcome(() => posted(s3 + "/data?delete", "text/plain", halves));
out.delete = await send(s3 + "/data?delete", {method: "POST", mode: "no-cors", body: doc});
const fields = new FormData();
fields.append("key", "planted");
fields.append("file", new Blob(["planted"]), "planted");
out.upload = await send(s3 + "/data", {method: "POST", mode: "no-cors", body: fields});
out.multipart = await outcome(() => posted(s3 + "/data/planted?uploads", "multipart/form-data", {a: "b"}));
out.beacon = navigator.sendBeacon(s3 + "/data?delete", doc);
out.put = await send(s3 + "/data/planted", {method: "PUT", body: "x"});
out.remove = await send(s3 + "/data/kept", {method: "DELETE"});
out.read = await send(s3 + "/data/kept");
return out;
"""

REBOUND = """
const out = {};
for (const [name, target, how] of given.calls) out[name] = await send(target, how);
return out;
"""

CONTROL = """
const out = {}, purge = JSON.stringify({uri: "s3://data/"}), control = given.control;
const json = {"Content-Type": "application/json"}, halves = {'{"uri": "s3://data/", "dry_run': 'x"}'};
out.form = await outcome(() => posted(control + "/v1/purge", "text/plain", halves));
out.purge = await send(control + "/v1/purge", {method: "POST", mode: "no-cors", body: purge});
out.typed = await send(control + "/v1/purge", {method: "POST", body: purge, headers: json});
out.beacon = navigator.sendBeacon(control + "/v1/purge", new Blob([purge], {type: "text/plain"}));
out.stats = await send(control + "/v1/stats");
return out;
"""


@pytest.fixture(params=["1", "2"], ids=["alone", "workers"])
def served(request, serve, bucket_directory):
    """Run a proxy with the default listeners, which accept anonymous requests. Object "kept" is cached, and
    every lane has answered it.
    """
    chromium()
    (bucket_directory / "data" / "kept").write_bytes(SECRET)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), s3__workers=request.param)
    for _ in range(8):
        assert read(f"{proxy.s3}/data/kept") == (200, SECRET)
    return proxy


def read(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def stored(bucket_directory):
    return {path.name: path.read_bytes() for path in (bucket_directory / "data").iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_site_writes_nothing(served, bucket_directory, tmp_path, name):
    s3 = served.s3.replace("127.0.0.1", name)
    report = visit(script(WRITES), tmp_path / "browser", s3=s3)
    assert report["form"] == report["multipart"] == "sent", report
    assert report["delete"] == report["upload"] == ["opaque", 0, ""], report
    assert report["beacon"] is True
    assert "TypeError" in report["put"]
    assert "TypeError" in report["remove"]
    assert "TypeError" in report["read"]
    assert stored(bucket_directory) == {"kept": SECRET}
    assert read(f"{served.s3}/data?uploads")[1].count(b"<Upload>") == 0


CALLS = [
    ["read", "/data/kept", {}],
    ["again", "/data/kept", {}],
    ["part", "/data/kept", {"headers": {"Range": "bytes=0-3"}}],
    ["list", "/data?list-type=2", {}],
    ["buckets", "/", {}],
    ["put", "/data/planted", {"method": "PUT", "body": "x"}],
    ["delete", "/data/kept", {"method": "DELETE"}],
]


def test_a_name_that_is_led_to_this_machine_reads_and_writes_nothing(served, bucket_directory, tmp_path):
    report = visit(
        script(REBOUND), tmp_path / "browser", host="rebound.example", leads_to=served.s3, calls=CALLS
    )
    for name, (kind, status, text) in report.items():
        assert (kind, status) == ("basic", 403), (name, report)
        assert "add the name to s3.domains" in text
        assert SECRET.decode() not in text
    assert report.keys() == {name for name, _, _ in CALLS}
    assert stored(bucket_directory) == {"kept": SECRET}


def test_the_control_listener_is_led_to_and_posted_to_in_vain(served, tmp_path):
    report = visit(script(CONTROL), tmp_path / "browser", control=served.control)
    assert report["form"] == "sent", report
    assert report["purge"] == ["opaque", 0, ""]
    assert "TypeError" in report["typed"]
    assert "TypeError" in report["stats"]
    asked = {
        "method": "POST",
        "headers": {"Content-Type": "application/json"},
        "body": '{"uri": "s3://data/"}',
    }
    calls = [["stats", "/v1/stats", {}], ["purge", "/v1/purge", asked]]
    rebound = visit(
        script(REBOUND), tmp_path / "again", host="rebound.example", leads_to=served.control, calls=calls
    )
    assert [(kind, status) for kind, status, _ in rebound.values()] == [("basic", 403)] * 2, rebound
    assert served.get("/v1/objects/data")["objects"], "purged"


def test_a_page_of_the_listener_itself_and_a_new_name_of_the_settings_are_served(
    serve, bucket_directory, tmp_path
):
    chromium()
    (bucket_directory / "data" / "kept").write_bytes(SECRET)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), s3__domains='["known.example"]')
    calls = [["read", "/data/kept", {}], ["put", "/data/new", {"method": "PUT", "body": "x"}]]
    for host in ("known.example", "localhost"):
        report = visit(script(REBOUND), tmp_path / host, host=host, leads_to=proxy.s3, calls=calls)
        assert report["read"] == ["basic", 200, SECRET.decode()]
        assert report["put"][1] == 200
        assert stored(bucket_directory)["new"] == b"x"


SIGNED = """
const fields = new FormData();
for (const [name, value] of Object.entries(given.fields)) fields.append(name, value);
fields.append("file", new Blob(["from a page"]), "page.txt");
return await send(given.s3 + "/data", {method: "POST", mode: "no-cors", body: fields});
"""


async def test_a_form_that_a_client_signed_is_taken_from_any_site(serve, bucket_directory, tmp_path):
    chromium()
    config = tmp_path / "config.toml"
    config.write_text('[[auth.clients]]\naccess_key = "trainer"\nsecret_env = "TRAINER"\n')
    proxy = serve(config, {"TRAINER": "its-secret"}, origin__kind="file", origin__path=str(bucket_directory))

    def upload():
        client = boto3.client(
            "s3", endpoint_url=proxy.s3, region_name="us-east-1", aws_access_key_id="trainer",
            aws_secret_access_key="its-secret", config=Config(signature_version="s3v4"),
        )  # fmt: skip
        fields = client.generate_presigned_post("data", "up/${filename}")["fields"]
        return visit(script(SIGNED), tmp_path / "browser", s3=proxy.s3, fields=fields)

    assert await asyncio.to_thread(upload) == ["opaque", 0, ""]
    assert (bucket_directory / "data" / "up" / "page.txt").read_bytes() == b"from a page"
