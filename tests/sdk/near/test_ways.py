"""The different ways to deliver samples. The bytes are the same by every way."""

import os
import random

import pytest

import shadeproxy_sdk as shade

IDS = list(range(40))


@pytest.fixture(params=["locate", "batch", "get", "mixed", "mixed get"])
def any_way(request, near):
    """Make the same data available by one way, or by a mixture of ways. Return the way's name."""
    way = request.param
    keys = [key for _, key in near.proxy.objects]
    near.keep(*{"locate": keys, "mixed": keys[::2], "mixed get": keys[::3]}.get(way, []))
    if way == "get":
        near.proxy.offers.clear()
    if way == "mixed get":
        near.statuses |= dict.fromkeys(keys[1::3], 503)
    return way


def test_every_way_gives_the_same_bytes(client, manifest, any_way, near):
    rng = random.Random(0)
    for _ in range(3):
        ids = rng.choices(IDS, k=60)
        assert client.read_many(manifest, ids) == [near.bodies[i] for i in ids]
    assert bool(near.proxy.reads) == (any_way in {"get", "mixed get"})
    assert bool(near.batches) == (any_way in {"batch", "mixed", "mixed get"})


def test_samples_in_open_files_cost_two_calls_a_process_and_one_a_batch(client, manifest, near):
    near.keep_all()
    for calls in (2, 3):
        assert client.read_many(manifest, IDS) == near.bodies
        assert [len(request["items"]) for request in near.locates] == [1, 39, 40][:calls]
    assert not near.batches
    assert not near.proxy.reads


def test_files_that_may_not_be_opened_are_read_by_batch(client, manifest, near, caplog):
    near.keep_all()
    for segment in near.segments:
        segment.path.rename(segment.path.with_suffix(".gone"))
    for _ in range(3):
        assert client.read_many(manifest, IDS) == near.bodies
    # So the proxy counts only one hit for which no bytes were delivered.
    assert [len(request["items"]) for request in near.locates] == [1]
    assert [len(request["items"]) for request in near.batches] == [40] * 3
    assert not caplog.records
    assert not near.proxy.reads


def test_files_that_can_be_opened_later_are_found(make_client, near):
    client = make_client(near.proxy, retry_s=0.0)
    manifest = client.manifest(bucket="train")
    near.keep_all()
    near.evict_after_locate = set(near.kept)
    assert client.read_many(manifest, IDS[:2]) == near.bodies[:2]
    near.evict_after_locate = set()
    near.keep_all()
    near.batches.clear()
    assert client.read_many(manifest, IDS) == near.bodies
    assert not near.batches


def test_what_is_evicted_between_locate_and_copy_is_read_again(client, manifest, near):
    near.keep_all()
    client.read_many(manifest, IDS[:2])
    near.evict_after_locate = {key for _, key in list(near.proxy.objects)[::3]}
    assert client.read_many(manifest, IDS) == near.bodies
    asked = {item["key"] for item in near.batches[0]["items"]}
    assert asked == near.evict_after_locate


def test_what_is_evicted_while_it_is_copied_is_read_again(client, manifest, near, monkeypatch):
    near.keep_all()
    client.read_many(manifest, IDS[:2])
    read = os.preadv

    def evict_and_read(descriptor, buffers, offset):
        for key in list(near.kept):
            near.evict(key)
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", evict_and_read)
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(near.batches[-1]["items"]) == 40


@pytest.mark.parametrize("call", ["batch", "locate"])
@pytest.mark.parametrize("refusal", [(404, "not_found"), (405, "method"), (403, "forbidden"), (503, "busy")])
def test_a_refused_call_is_made_up_for_by_the_next_way(client, manifest, near, call, refusal):
    near.refusals[call] = refusal
    for _ in range(2):
        assert client.read_many(manifest, IDS) == near.bodies
    assert len(near.locates if call == "locate" else near.batches) == 1
    assert bool(near.proxy.reads) == (call == "batch")


def test_missing_object_fails_with_the_words_of_a_get(client, manifest, near):
    del near.proxy.objects["train", "0/003"]
    with pytest.raises(
        shade.ReadError, match=r"s3://train/0/003 cannot be read .* 404 NoSuchKey; check bucket"
    ):
        client.read_many(manifest, IDS)


def test_refused_item_is_read_by_get_and_then_from_the_origin(client, manifest, near, origin):
    near.statuses["0/003"] = 503
    near.proxy.faults.extend(["503"] * 3)
    assert client.read_many(manifest, IDS) == near.bodies
    assert [read[1] for read in near.proxy.reads] == ["0/003"] * 3
    assert [read[1] for read in origin.reads] == ["0/003"]


def test_dead_proxy_falls_back_to_the_origin(client, manifest, near, origin):
    near.keep_all()
    client.read_many(manifest, IDS)
    near.proxy.die()
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(origin.reads) == 40


def test_restarted_proxy_is_used_again_at_once(client, manifest, near):
    near.keep_all()
    client.read_many(manifest, IDS)
    near.proxy.die()
    near.restart()
    near.keep_all()
    near.proxy.start()
    near.batches.clear()
    assert (
        client.read_many(manifest, IDS) == near.bodies
    )  # The client still has idle connections and open files of the old proxy.
    assert not near.batches
    assert not near.proxy.reads


def test_calls_carry_the_job_and_the_token(make_client, near):
    client = make_client(near.proxy, token="top-secret")
    manifest = client.manifest(bucket="train")
    job = client.job("run", dataset=manifest, rank=1, world_size=2, interval_s=3600.0)
    job.begin(3)
    assert client.read_many(manifest, IDS) == near.bodies
    for request in (*near.locates, *near.batches):
        assert (request["job"], request["epoch"], request["rank"]) == ("run", 3, 1)
    assert {headers["authorization"] for headers in near.headers} == {"Bearer top-secret"}
    assert near.batches[0]["order"] == "ready"
    near.proxy.forget()
    assert client.read_many(manifest, IDS) == near.bodies
    assert "job" not in near.batches[-1]
    assert not near.proxy.reads
    job.close()


def test_parts_of_objects(client, near, parts):
    near.keep("shard")
    expected = [bytes(range(10 * i, 10 * i + 10)) for i in range(10)]
    for _ in range(2):
        assert client.read_many(parts, range(10)) == expected
    assert not near.batches
    near.evict("shard")
    assert client.read_many(parts, range(10)) == expected
    assert not near.proxy.reads


def test_parts_beyond_the_end_are_an_error_with_the_words_of_a_get(client, near):
    near.proxy.put("train", shard=bytes(95))
    near.keep("shard")
    parts = shade.Manifest.from_entries(
        "parts", [shade.Entry("train", "shard", 10 * i, 10) for i in range(10)]
    )
    with pytest.raises(shade.ReadError, match=r"has 5 of the 10 bytes .* register the dataset again"):
        client.read_many(parts, range(10))


@pytest.mark.parametrize("key", ["a b+c%d", "ü/ß", 'a"b', "a\\b", "a\nb", "?x=1&y#z", ""])
def test_any_key_arrives_as_it_is(client, near, key):
    key = f"k{key}"
    near.proxy.objects["train", key] = b"data"
    manifest = shade.Manifest.from_entries("odd", [shade.Entry("train", "1/001"), shade.Entry("train", key)])
    assert client.read_many(manifest, [1, 0]) == [b"data", b"\1\1"]
    assert not near.proxy.reads


def test_empty_samples(client, near):
    near.proxy.objects["train", "empty"] = b""
    entries = [
        shade.Entry("train", "empty"),
        shade.Entry("train", "1/001", 1, 0),
        shade.Entry("train", "1/001"),
    ]
    manifest = shade.Manifest.from_entries("empty", entries)
    assert client.read_many(manifest, [0, 1, 2]) == [b"", b"", b"\1\1"]
    assert client.read_many(manifest, []) == []


def test_more_samples_than_one_call_takes(client, near, manifest, monkeypatch):
    monkeypatch.setattr("shadeproxy_sdk.bulk.MOST_ITEMS", 7)
    assert client.read_many(manifest, IDS) == near.bodies
    assert max(len(request["items"]) for request in near.batches) == 7


def test_unix_socket_is_preferred_and_tcp_where_it_cannot_be_opened(make_client, near, tmp_path):
    near.listen(tmp_path / "control.sock")
    client = make_client(near.proxy)
    manifest = client.manifest(bucket="train")
    assert client.read_many(manifest, IDS) == near.bodies
    calls = near.unix_calls
    assert calls == len(near.batches) + len(near.locates)
    near.close()
    (tmp_path / "control.sock").unlink()
    far = make_client(near.proxy)
    assert far.read_many(manifest, IDS) == near.bodies
    assert near.unix_calls == calls
    assert not near.proxy.reads


def test_proxy_that_never_answers_costs_the_timeout_and_not_the_batch(
    make_client, manifest, silent_server, near
):
    client = make_client(
        f"http://127.0.0.1:{silent_server}",
        s3_endpoint=near.proxy.url,
        timeout_s=1.0,
    )
    assert client.read_many(manifest, IDS) == near.bodies
    assert len(near.proxy.reads) == 40


# ---------------------------------------------------------------------- by id


def test_a_manifest_that_the_proxy_took_is_read_by_id_and_digest(client, manifest, near):
    near.keep_all()
    assert client.read_many(manifest, IDS) == near.bodies
    assert {call.get("digest") for call in near.locates} == {manifest.digest}
    assert {call.get("dataset") for call in near.locates} == {manifest.name}


@pytest.mark.parametrize("what", ["registered anew", "forgotten", "too old"])
def test_where_ids_are_refused_samples_go_by_key(make_client, near, what):
    client = make_client(near.proxy, retry_s=3600.0)
    manifest = client.manifest(bucket="train")
    near.keep_all()
    if what == "registered anew":
        near.proxy.datasets[manifest.name].reverse()
    elif what == "forgotten":
        near.proxy.datasets.clear()
    else:
        near.refuse_digests = True
    assert client.read_many(manifest, IDS) == near.bodies
    assert client.read_many(manifest, IDS) == near.bodies
    assert not near.proxy.reads
    by_id = ["dataset" in call for call in (*near.locates, *near.batches)]
    assert by_id[0]
    assert not any(by_id[1:])  # The client does not try ids again for every batch.


def test_another_data_set_goes_by_id_where_one_is_refused(make_client, near):
    client = make_client(near.proxy, retry_s=3600.0)
    refused, other = client.manifest(bucket="train"), client.manifest(bucket="train", name="other")
    near.keep_all()
    near.proxy.datasets[refused.name].reverse()
    assert client.read_many(refused, IDS) == near.bodies
    assert client.read_many(other, IDS) == near.bodies
    assert near.locates[-1].get("dataset") == "other"
    assert client.read_many(refused, IDS) == near.bodies
    assert "dataset" not in near.locates[-1]
