import json
import logging
import pickle
import random

import pytest

import shadeproxy_sdk as shade
from shadeproxy.core import sigv4

SAMPLE = shade.Entry("train", "1/001")
NOBODY = "http://127.0.0.1:9"


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_reads_through_the_proxy(client, proxy, origin):
    assert client.read(SAMPLE) == proxy.objects["train", "1/001"]
    assert [read[:2] for read in proxy.reads] == [("train", "1/001")]
    assert not origin.reads


def test_part_of_an_object(client, proxy):
    proxy.put("train", shard=bytes(range(100)))
    assert client.read(shade.Entry("train", "shard", 10, 5)) == bytes(range(10, 15))
    assert proxy.reads[-1][2]["range"] == "bytes=10-14"
    assert client.read(shade.Entry("train", "shard", 10, 0)) == b""


def test_part_beyond_the_end_is_an_error_not_a_short_sample(client, proxy):
    proxy.put("train", shard=bytes(100))
    with pytest.raises(shade.ReadError, match=r"has 5 of the 10 bytes .* register the dataset again"):
        client.read(shade.Entry("train", "shard", 95, 10))


def test_part_of_an_object_that_shrank_says_what_to_do(client, proxy, origin):
    proxy.put("train", shard=bytes(10))
    proxy.faults.append("416")
    with pytest.raises(shade.ReadError, match=r"416 .*the object is shorter .* register the dataset again"):
        client.read(shade.Entry("train", "shard", 95, 10))
    assert not origin.reads


@pytest.mark.parametrize("key", ["a b+c%d", "ü/ß", "a/../b/./c", "a//b", "?x=1&y#z"])
def test_any_key_arrives_as_it_is(client, proxy, key):
    proxy.objects["train", key] = b"data"
    assert client.read(shade.Entry("train", key)) == b"data"


@pytest.mark.parametrize(
    "faults",
    [
        ["short"],
        ["reset"],
        ["head"],
        ["headContent-Length:"],
        ["headTransfer-Encoding: chu"],
        ["endless"],
        ["503"],
        ["short", "reset"],
    ],
)
def test_a_read_that_breaks_is_repeated_and_whole(client, proxy, origin, faults, caplog):
    proxy.faults.extend(faults)
    assert client.read(SAMPLE) == proxy.objects["train", "1/001"]
    assert len(proxy.reads) == len(faults) + 1
    assert not origin.reads
    assert not warnings_in(caplog)


def test_an_answer_for_which_there_is_no_memory_is_read_elsewhere(client, proxy, origin):
    proxy.faults.append("vast")
    assert client.read(SAMPLE) == origin.objects["train", "1/001"]


def test_a_read_that_is_repeated_draws_no_random_number_of_training(client, proxy):
    random.seed(1)
    before = random.getstate()
    proxy.faults.extend(["503"])
    client.read(SAMPLE)
    assert len(proxy.reads) == 2
    assert random.getstate() == before


def test_missing_object_says_what_and_where(client, origin):
    with pytest.raises(shade.ReadError, match=r"s3://train/none cannot be read .* 404 NoSuchKey; check"):
        client.read(shade.Entry("train", "none"))
    assert not origin.reads


def test_dead_proxy_falls_back_to_the_origin_and_says_so_once(client, proxy, origin, caplog):
    client.read(SAMPLE)
    proxy.die()
    for key in ("0/000", "2/002", "0/003"):
        assert client.read(shade.Entry("train", key)) == origin.objects["train", key]
    (warning,) = warnings_in(caplog)
    assert proxy.url in warning
    assert origin.url in warning


def test_failed_proxy_is_not_asked_for_every_sample(client, proxy, origin):
    proxy.faults.extend(["reset"] * 100)
    for _ in range(5):
        client.read(SAMPLE)
    assert len(proxy.reads) == 3
    assert len(origin.reads) == 5


def test_overloaded_proxy_falls_back_for_that_read_only(client, proxy, origin):
    proxy.faults.extend(["503"] * 3)
    assert client.read(SAMPLE) == origin.objects["train", "1/001"]
    client.read(SAMPLE)
    assert len(origin.reads) == 1
    assert len(proxy.reads) == 4


def test_proxy_that_comes_back_is_used_again(make_client, proxy, origin):
    client = make_client(proxy, origin=shade.Origin(origin.url), retry_s=0.0)
    client.read(SAMPLE)
    proxy.die()
    client.read(SAMPLE)
    assert len(origin.reads) == 1
    proxy.start()
    client.read(SAMPLE)
    assert len(origin.reads) == 1
    assert len(proxy.reads) == 2


def test_nobody_answers_names_both_and_what_to_set(make_client):
    client = make_client(NOBODY, origin=shade.Origin("http://127.0.0.1:7"), timeout_s=0.2)
    with pytest.raises(shade.ReadError) as failure:
        client.read(SAMPLE)
    text = str(failure.value)
    assert "127.0.0.1:9" in text
    assert "127.0.0.1:7" in text
    assert "connection refused" in text
    assert "shadeproxy serve" in text
    assert "AWS_ENDPOINT_URL_S3" in text


def test_no_origin_known_waits_then_says_what_to_set(make_client):
    client = make_client(NOBODY, timeout_s=0.1, retry_s=0.01)
    with pytest.raises(shade.ReadError, match=r"no origin is known. Start the proxy"):
        client.read(SAMPLE)
    with pytest.raises(shade.ReadError, match=r"no origin is known. Start the proxy"):
        client.manifest(bucket="train")


def test_absent_proxy_lists_the_origin_with_the_ids_that_the_proxy_gives(make_client, client, origin, proxy):
    for fake in (origin, proxy):
        fake.put("train", **{"z z": b"1", "é": b"2", "dir/": b""})
    proxy.keys = lambda bucket, prefix: [k for k in origin.keys(bucket, prefix) if k != "dir/"]
    origin.page = 7
    absent = make_client(NOBODY, origin=shade.Origin(origin.url))
    listed, registered = absent.manifest(bucket="train"), client.manifest(bucket="train")
    assert list(listed) == list(registered)
    assert listed.digest == registered.digest
    assert listed.name == registered.name
    assert origin.listings == 7


def test_a_dataset_is_listed_by_a_proxy_that_has_just_come_back(make_client, proxy):
    client = make_client(proxy)
    manifest = client.manifest(bucket="train")
    proxy.die()
    client.job("run", dataset=manifest).close(1.0)
    proxy.start()
    assert len(client.manifest(bucket="train", prefix="1/")) == 13


def test_s3_endpoint_overrides_what_the_proxy_says(make_client, proxy, origin):
    client = make_client(proxy, s3_endpoint=origin.url)
    client.read(SAMPLE)
    assert len(origin.reads) == 1
    assert not proxy.calls


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("timeout_s", 0, "timeout_s 0: give a number of seconds above 0"),
        ("timeout_s", float("nan"), "timeout_s nan: give a number of seconds above 0"),
        ("timeout_s", "x", "timeout_s 'x': give a number of seconds above 0"),
        ("retry_s", -1, "retry_s -1: give a number of seconds from 0 on"),
        ("concurrency", 0, "concurrency 0: give a whole number from 1 on"),
        ("concurrency", 1.5, "concurrency 1.5: give a whole number from 1 on"),
        ("credentials", "secret", "credentials is a str: give Credentials(access_key, ...)"),
        ("origin", "http://x", "origin is a str: give Origin(endpoint_url=...)"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(argument, value, message):
    with pytest.raises(shade.ConfigError) as refused:
        shade.Client(NOBODY, **{argument: value})
    assert str(refused.value) == message


@pytest.mark.parametrize("part", [(5, None), (-5, 3), (0, -1)])
def test_a_part_that_is_none_is_refused(make_client, proxy, part):
    with pytest.raises(shade.ConfigError, match="give both, from 0 on, for a part"):
        make_client(proxy).read(shade.Entry("train", "1/001", *part))
    assert not proxy.reads


class Starting:
    """The answers to ``GET /v1/info`` of a proxy that is starting. The proxy opens its S3 listener after
    ``calls`` such requests.
    """

    def __init__(self, proxy, calls):
        self._proxy, self._calls = proxy, calls
        proxy.more["info"] = self

    def __call__(self, handler, _body):
        opened = {} if self._calls > 0 else {"s3_endpoint": self._proxy.url}
        self._calls -= 1
        handler.reply(200, json.dumps({"version": "0", "page_size": 4 << 20} | opened).encode())


def test_a_proxy_that_has_not_opened_its_s3_listener_yet_is_waited_for(make_client, proxy):
    Starting(proxy, calls=3)
    assert make_client(proxy, retry_s=0.01).read(SAMPLE) == proxy.objects["train", "1/001"]


def test_while_a_proxy_starts_the_origin_answers(make_client, proxy, origin, caplog):
    Starting(proxy, calls=10**6)
    client = make_client(proxy, origin=shade.Origin(origin.url))
    assert client.read(SAMPLE) == origin.objects["train", "1/001"]
    (warning,) = warnings_in(caplog)
    assert "it is starting: its /v1/info names no s3_endpoint yet" in warning


def test_a_proxy_that_never_opens_its_s3_listener_is_named_in_the_error(make_client, proxy):
    Starting(proxy, calls=10**6)
    with pytest.raises(shade.ReadError, match="it is starting: its /v1/info names no s3_endpoint yet"):
        make_client(proxy, timeout_s=0.1, retry_s=0.01).read(SAMPLE)


def test_a_server_that_is_no_proxy_is_refused_at_once(make_client, proxy):
    proxy.more["info"] = lambda handler, _body: handler.reply(200, b"{}")
    with pytest.raises(shade.ConfigError, match=r"names no s3_endpoint: give Client\(s3_endpoint=...\)"):
        make_client(proxy).read(SAMPLE)


def test_wildcard_address_means_the_control_host(make_client, proxy):
    client = make_client(proxy, s3_endpoint=f"http://0.0.0.0:{proxy.port}")
    client.read(SAMPLE)
    assert proxy.reads[0][2]["Host"] == f"127.0.0.1:{proxy.port}"


def test_environment_names_the_origin(make_client, origin, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", origin.url)
    assert make_client(NOBODY).read(SAMPLE) == origin.objects["train", "1/001"]


def test_environment_that_points_at_the_proxy_is_no_origin(make_client, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url + "/")
    client = make_client(proxy, timeout_s=0.2, retry_s=0.01)
    client.read(SAMPLE)
    proxy.die()
    with pytest.raises(shade.ReadError, match="no origin is known"):
        client.read(SAMPLE)


def test_amazon_is_the_origin_of_a_region_with_keys():
    environ = {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "secret"}
    origin = shade.Origin.from_environment(environ)
    assert origin == shade.Origin("https://s3.eu-central-1.amazonaws.com", "eu-central-1", "AK", "secret")
    assert shade.Origin.from_environment({"AWS_REGION": "eu-central-1"}) is None


def test_signed_reads_carry_the_signature_that_the_proxy_verifies(make_client, proxy):
    keys = shade.Credentials("AK", "very-secret", "session")
    proxy.objects["train", "a b/ü"] = b"x"
    make_client(proxy, credentials=keys).read(shade.Entry("train", "a b/ü"))
    sent = proxy.reads[0][2]
    names = sent["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    lowered = {name.lower(): value for name, value in sent.items()}
    scope = sigv4.Scope(lowered["x-amz-date"][:8], "us-east-1")
    canonical = sigv4.canonical_request(
        "GET",
        sigv4.encode_path("/train/a%20b/%C3%BC"),
        "",
        [(name, lowered[name]) for name in names],
        lowered["x-amz-content-sha256"],
    )
    expected = sigv4.signature("very-secret", scope, lowered["x-amz-date"], canonical)
    assert sent["Authorization"].endswith(f"Signature={expected}")
    assert lowered["x-amz-security-token"] == "session"


def test_token_is_sent_and_shown_nowhere(make_client, proxy, origin):
    client = make_client(proxy, token="top-secret", origin=shade.Origin(origin.url, "r", "AK", "also-secret"))
    client.manifest(bucket="train")
    assert proxy.calls[0][2]["authorization"] == "Bearer top-secret"
    proxy.refuse["datasets"] = 403
    with pytest.raises(shade.ControlError) as failure:
        client.manifest(bucket="train")
    proxy.die()
    texts = [repr(client), repr(client.__dict__), repr(failure.value), str(pickle.dumps(failure.value))]
    assert not any("secret" in text for text in texts)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_told_once_and_the_origin_answers(client, proxy, origin, caplog, status):
    proxy.refuse["info"] = status
    for key in ("0/000", "2/002", "0/003"):
        assert client.read(shade.Entry("train", key)) == origin.objects["train", key]
    assert [read[1] for read in origin.reads] == ["0/000", "2/002", "0/003"]
    (warning,) = warnings_in(caplog)
    assert f"it refuses this client: {status} refused: GET /v1/info: told so (change it)" in warning
    assert len(proxy.calls) == 1, "the proxy is tried again after a pause"


def test_a_refused_token_is_an_error_at_each_read_if_no_origin_is_known(make_client, proxy):
    proxy.refuse["info"] = 401
    client = make_client(proxy)
    breaker = client.connections.s3_breaker
    breaker.failed(breaker.ask(), "it was away")
    breaker.hurry(0.0)
    for _ in range(2):
        with pytest.raises(shade.ControlError, match=r"401 refused: GET /v1/info: told so \(change it\)"):
            client.read(SAMPLE)


def test_a_refused_token_does_not_matter_to_reads_if_the_s3_listener_is_known(
    make_client, proxy, origin, caplog
):
    proxy.refuse["info"] = 401
    known = make_client(proxy, s3_endpoint=proxy.url, origin=shade.Origin(origin.url))
    manifest = shade.Manifest.from_entries("d", [SAMPLE])
    assert known.read_many(manifest, [0]) == [proxy.objects["train", "1/001"]]
    assert not origin.reads
    assert not warnings_in(caplog)


def test_the_origin_answers_if_info_names_no_s3_listener(client, proxy, origin, caplog):
    proxy.offers["s3_endpoint"] = 7
    assert client.read(SAMPLE) == origin.objects["train", "1/001"]
    (warning,) = warnings_in(caplog)
    assert "its /v1/info names no s3_endpoint: give Client(s3_endpoint=...)" in warning


def test_refusal_has_the_proxys_words(client, proxy):
    proxy.refuse["datasets"] = 403
    with pytest.raises(
        shade.ControlError, match=r"403 refused: PUT /v1/datasets/.*: told so \(change it\)"
    ) as failure:
        client.manifest(bucket="train")
    copy = pickle.loads(pickle.dumps(failure.value))
    assert (str(copy), copy.status) == (str(failure.value), 403)


def test_a_proxy_that_came_back_and_refuses_counts_as_one_that_answers(make_client, proxy):
    client = make_client(proxy)
    breaker = client.connections.control_breaker
    breaker.failed(breaker.ask(), "it was away")
    breaker.hurry(0.0)
    proxy.refuse["datasets"] = 403
    with pytest.raises(shade.ControlError):
        client.manifest(bucket="train")
    assert not breaker.is_open
    proxy.refuse.clear()
    assert len(client.manifest(bucket="train")) == 40


def test_failing_proxy_does_not_stop_the_listing(client, proxy, origin):
    proxy.refuse["datasets"] = 503
    assert len(client.manifest(bucket="train")) == 40
    assert origin.listings == 1


def test_server_that_is_no_proxy_is_told_apart(make_client, origin):
    with pytest.raises(shade.ControlError, match=r"is .* ShadeProxy's control side"):
        make_client(origin).read(SAMPLE)


def test_client_is_picklable_before_and_after_use(client, proxy):
    client.read(SAMPLE)
    copy = pickle.loads(pickle.dumps(client))
    assert copy.read(SAMPLE) == proxy.objects["train", "1/001"]
    copy.close()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: shade.Client("127.0.0.1:9001"), "write http://host:port"),
        (lambda: shade.Origin("s3.example"), "is not an S3 endpoint"),
        (lambda: shade.Origin("http://s3.example", access_key="AK"), "both access_key and secret_key"),
        (lambda: shade.Client(NOBODY).job("a b", dataset=None), "cannot name a job: use letters"),
        (
            lambda: shade.Client(NOBODY).job("a", dataset=None, rank=2, world_size=2),
            r"rank 2 is not in 0 .. 1",
        ),
        (lambda: shade.Client(NOBODY).manifest(bucket="b", name="a/b"), "cannot name a dataset"),
        (lambda: shade.S3Dataset(shade.Client(NOBODY)), "either bucket"),
    ],
)
def test_wrong_arguments_say_what_to_write(make, text):
    with pytest.raises(shade.ConfigError, match=text):
        make()


def test_empty_prefix_says_what_to_check(client):
    with pytest.raises(shade.ConfigError, match="has no samples: check the bucket and the prefix"):
        client.manifest(bucket="train", prefix="nothing/")


def test_signing_without_botocore_says_what_to_install(make_client, proxy, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "botocore.auth", None)
    client = make_client(proxy, credentials=shade.Credentials("AK", "secret"))
    with pytest.raises(shade.ConfigError, match="pip install botocore"):
        client.read(SAMPLE)


@pytest.mark.parametrize(("key", "missing", "told"), [("AK", True, 1), ("AK", False, 0), (None, True, 0)])
def test_an_origin_that_needs_botocore_says_so_before_training_depends_on_it(
    monkeypatch, caplog, key, missing, told
):
    found = None if missing else object()
    monkeypatch.setattr("shadeproxy_sdk.origin.find_spec", lambda name: found if name == "botocore" else None)
    shade.Origin("http://127.0.0.1:1", access_key=key, secret_key=key and "hidden")
    texts = warnings_in(caplog)
    assert len(texts) == told
    for text in texts:
        assert "pip install botocore" in text
        assert "training ends if the proxy does" in text
        assert "hidden" not in text


def test_reads_from_the_origin_are_told_also_where_the_job_said_that_the_proxy_is_away(
    make_client, origin, caplog
):
    client = make_client(NOBODY, origin=shade.Origin(origin.url))
    job = client.job("run", dataset=shade.Manifest.from_entries("d", [SAMPLE]), interval_s=3600.0)
    for _ in range(2):
        assert client.read(SAMPLE) == origin.objects["train", "1/001"]
    away, fallen = warnings_in(caplog)
    assert "training goes on, and scores wait" in away
    assert "reading from the origin" in fallen
    job.close(0)


def test_a_token_as_a_file_gives_it_is_sent_without_its_line_end(make_client, proxy):
    make_client(proxy, token="clé ❤\n").call("GET", "/v1/info")
    sent = next(value for name, value in proxy.calls[-1][2].items() if name.lower() == "authorization")
    assert sent.encode("latin-1").decode() == "Bearer clé ❤"


def test_a_token_that_no_header_can_carry_is_refused_and_not_shown():
    with pytest.raises(shade.ConfigError) as caught:
        shade.Client("http://127.0.0.1:1", token="top\nsecret")
    assert str(caught.value) == (
        "the token has a line end or control character: give Client(token=...) it alone"
    )


@pytest.mark.parametrize("told", [{}, {"s3_endpoint": 7}, {"s3_endpoint": "no address"}])
def test_workers_know_the_s3_listener_that_the_manifest_was_listed_by(make_client, proxy, told):
    """Else they could not read from it while the control listener hangs."""
    client = make_client(proxy)
    proxy.offers = told
    manifest = client.manifest(bucket="train")
    proxy.refuse = {"info": 503}
    worker = pickle.loads(pickle.dumps(client))
    if told:
        proxy.refuse = {}
        proxy.offers = {}
    assert worker.read(manifest[0]) == proxy.objects["train", manifest[0].key]
    worker.close()
