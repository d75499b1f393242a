"""Answers to batch calls that arrive in pieces of any size, break off at any byte, or are wrong. A sample
arrives whole or is missing.
"""

import struct
import threading

import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.channel import Channel

IDS = list(range(12))
FRAME = struct.Struct("<IHBBQ")
END = FRAME.pack(0xFFFFFFFF, 0, 0, 0, 12)


@pytest.fixture
def data(client, near):
    near.proxy.objects = {k: v for k, v in near.proxy.objects.items() if k[1] < "0/040"}
    near.proxy.offers["locate"] = False
    return client, client.manifest(bucket="train")


@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17, 100, 1 << 16])
def test_frames_may_be_split_anywhere(data, near, chunk):
    client, manifest = data
    near.chunk = chunk
    for _ in range(2):
        assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert not near.proxy.reads


@pytest.mark.parametrize("big", [16368, 16384, 16385, 300_000])
def test_samples_around_the_read_ahead(data, near, big):
    client, manifest = data
    near.proxy.objects["train", "0/003"] = bytes(range(256)) * (big // 256) + b"x" * (big % 256)
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert not near.proxy.reads


@pytest.mark.parametrize("chunk", [4999, 16384, 30_016, 1 << 20])
def test_big_samples_one_behind_the_other(data, near, chunk):
    client, manifest = data
    for number in (0, 3, 6, 9):
        near.proxy.objects["train", f"0/{number:03}"] = bytes([number, 7, 8]) * 10_000
    near.chunk = chunk
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert not near.proxy.reads
    bodies = [len(body) for body in reversed(near.bodies[:12])]
    ends = [sum(bodies[: i + 1]) + 16 * (i + 1) for i in range(12)]
    for cut in (ends[0] - 20_000, ends[0] - 1, ends[0], ends[0] + 1, ends[0] + 15, ends[-1], ends[-1] + 15):
        near.cuts = [cut]
        assert client.read_many(manifest, IDS) == near.bodies[:12], cut
    assert not near.proxy.reads


@pytest.fixture
def alike(client, near, proxy):
    """Return a client, a manifest and bodies. All samples have the same length, and the client knows this
    length.
    """
    near.proxy.offers["locate"] = False
    near.in_order = True
    proxy.put("train", **{f"alike/{i:02}": bytes([i]) * 30_000 for i in range(12)})
    manifest = shade.Manifest.from_entries(
        "alike", [shade.Entry("train", f"alike/{i:02}") for i in range(12)]
    )
    client.read_many(manifest, [0])
    near.batches.clear()
    return client, manifest, [bytes([i]) * 30_000 for i in range(12)]


@pytest.fixture
def headers(monkeypatch):
    """Return a list of the frame headers that the client received in a separate read."""
    read_into, waited = Channel.read_into, []

    def noted(channel, view, follow_bytes=0):
        read_into(channel, view, follow_bytes)
        if len(view) == FRAME.size:
            waited.append(FRAME.unpack(view))

    monkeypatch.setattr(Channel, "read_into", noted)
    return waited


@pytest.mark.parametrize(("chunk", "alone"), [(1 << 20, 2), (3 * 30_016, 5), (30_016, 13), (17, 13)])
def test_samples_of_known_length_come_many_at_a_time(alike, near, headers, chunk, alone):
    client, manifest, bodies = alike
    near.chunk = chunk
    for ids in (IDS, IDS[::-1]):
        headers.clear()
        assert client.read_many(manifest, ids) == [bodies[i] for i in ids]
        assert len(headers) == alone
    assert not near.proxy.reads
    assert len(near.batches) == 2


def test_the_end_of_an_answer_comes_with_its_last_samples(alike, near, monkeypatch):
    """The end of an answer is received together with the last samples. Here the last frame lies in a chunk of
    its own, behind the samples.
    """
    client, manifest, bodies = alike
    near.chunk = 12 * 30_016
    steps = []
    for name in ("read_some", "_fill"):
        step = getattr(Channel, name)

        def noted(channel, *rest, name=name, step=step):
            steps.append(name)
            return step(channel, *rest)

        monkeypatch.setattr(Channel, name, noted)
    assert client.read_many(manifest, IDS) == bodies
    assert steps[-1] == "read_some", "no byte was received behind the samples"


@pytest.mark.parametrize("chunk", [1 << 20, 100_000])
@pytest.mark.parametrize("length", [0, 1, 16, 29_999, 30_001, 70_000])
def test_a_sample_that_became_longer_or_shorter_does_not_harm_the_others(alike, near, chunk, length):
    client, manifest, bodies = alike
    near.chunk = chunk
    near.proxy.objects["train", "alike/05"] = bodies[5] = b"new" * 30_000
    near.proxy.objects["train", "alike/05"] = bodies[5] = bodies[5][:length]
    assert client.read_many(manifest, IDS) == bodies
    assert not near.proxy.reads


@pytest.mark.parametrize("missing", [0, 1, 6, 11])
def test_a_refusal_among_samples_that_come_together(alike, near, missing):
    client, manifest, bodies = alike
    near.statuses[f"alike/{missing:02}"] = 503
    near.chunk = 1 << 20
    assert client.read_many(manifest, IDS) == bodies
    assert [key for _, key, _ in near.proxy.reads] == [f"alike/{missing:02}"]


def test_one_refusal_does_not_separate_all_that_follow(client, near, proxy, headers):
    near.proxy.offers["locate"] = False
    near.in_order, near.chunk = True, 1 << 24
    bodies = [bytes([i]) * 30_000 for i in range(120)]
    proxy.put("train", **{f"many/{i:03}": body for i, body in enumerate(bodies)})
    entries = [shade.Entry("train", f"many/{i:03}") for i in range(120)]
    manifest = shade.Manifest.from_entries("many", entries)
    client.read_many(manifest, [0])
    headers.clear()
    near.statuses["many/003"] = 503
    assert client.read_many(manifest, range(120)) == bodies
    assert 16 < len(headers) < 60


def test_what_is_whole_when_the_connection_ends_is_kept(client, near, proxy):
    """Samples that are whole when the connection ends are kept. This holds even if they arrived together with
    an earlier header, before the client asked for them.
    """
    near.proxy.offers["locate"] = False
    near.in_order, near.chunk = True, 1 << 20
    proxy.put("train", **{f"few/{i:02}": bytes([i]) * 1000 for i in range(12)})
    manifest = shade.Manifest.from_entries("few", [shade.Entry("train", f"few/{i:02}") for i in range(12)])
    client.read_many(manifest, [0])
    for whole in range(1, 12):
        near.batches.clear()
        near.cuts = [1016 * whole]
        assert client.read_many(manifest, IDS) == [bytes([i]) * 1000 for i in IDS]
        assert len(near.batches[1]["items"]) == 12 - whole


def test_memory_that_is_not_there_is_not_asked_for_twice(alike, near):
    client, manifest, bodies = alike
    near.chunk = 1 << 20
    near.mangle = lambda whole: rewrite(whole, length=4 << 40) + whole[16:]
    assert client.read_many(manifest, IDS) == bodies
    assert len(near.proxy.reads) == 12


def test_what_comes_together_and_is_cut_short_is_kept_as_far_as_it_is_whole(alike, near):
    client, manifest, bodies = alike
    near.chunk = 1 << 20
    ends = [30_016 * (i + 1) for i in range(12)]
    cuts = [1, 30_015, ends[0], ends[0] + 8, ends[4] - 1, ends[4], ends[4] + 1, ends[4] + 16, ends[11] + 15]
    for cut in cuts:
        near.batches.clear()
        near.cuts = [cut]
        assert client.read_many(manifest, IDS) == bodies, cut
        asked = [[item["key"] for item in request["items"]] for request in near.batches]
        whole = sum(end <= cut for end in ends)
        assert asked[1:] == ([[f"alike/{i:02}" for i in range(whole, 12)]] if whole < 12 else []), cut
    assert not near.proxy.reads


@pytest.mark.parametrize("wrong", [{"index": 4}, {"index": 99}, {"zero": 1}, {"length": 1 << 60}], ids=str)
def test_a_rule_that_is_broken_among_samples_that_come_together(alike, near, wrong):
    client, manifest, bodies = alike
    near.chunk, at = 1 << 20, 5 * 30_016
    near.mangle = lambda whole: whole[:at] + rewrite(whole[at:], **wrong) + whole[at + 16 :]
    assert client.read_many(manifest, IDS) == bodies
    assert len(near.proxy.reads) == 12


def test_an_answer_cut_anywhere_is_asked_for_again_where_it_is_missing(data, near):
    client, manifest = data
    whole = sum(len(body) for body in near.bodies[:12]) + 13 * 16
    for cut in (0, 1, 15, 16, 17, 40, whole // 2, whole - 17, whole - 16, whole - 1):
        near.batches.clear()
        near.cuts = [cut]
        assert client.read_many(manifest, IDS) == near.bodies[:12], cut
        first, *again = [{item["key"] for item in request["items"]} for request in near.batches]
        assert all(part < first for part in again if cut > 50)
    assert not near.proxy.reads


def test_an_answer_that_is_cut_every_time_is_made_up_for_by_gets(data, near):
    client, manifest = data
    near.cuts = [60] * 10
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert len(near.batches) == 2
    assert 0 < len(near.proxy.reads) < 12


def rewrite(frame, **fields):
    names = ("index", "status", "source", "zero", "length")
    return FRAME.pack(*(dict(zip(names, FRAME.unpack(frame[:16]), strict=True)) | fields).values())


@pytest.mark.parametrize(
    "mangle",
    [
        pytest.param(lambda whole: whole[:-16], id="no end"),
        pytest.param(lambda whole: whole[:-32] + END, id="a frame less"),
        pytest.param(lambda whole: whole[:-16] + rewrite(END, length=11), id="another count"),
        pytest.param(lambda whole: whole[:-16] + rewrite(END, status=200), id="end with a status"),
        pytest.param(lambda whole: whole + b"x", id="more after the end"),
        pytest.param(lambda whole: rewrite(whole, index=12) + whole[16:], id="unknown index"),
        pytest.param(lambda whole: rewrite(whole, index=0) + whole[16:], id="index twice"),
        pytest.param(lambda whole: rewrite(whole, zero=1) + whole[16:], id="not zero"),
        pytest.param(lambda whole: rewrite(whole, length=1 << 60) + whole[16:], id="length beyond S3"),
        pytest.param(
            lambda whole: rewrite(whole, status=500, length=1 << 20) + whole[16:], id="long refusal"
        ),
        pytest.param(lambda whole: rewrite(whole, length=1) + whole[16:], id="short length"),
        pytest.param(lambda _: b"<html>", id="no frames at all"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_not_believed(data, near, mangle):
    client, manifest = data
    near.mangle = mangle
    for _ in range(2):
        assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert near.proxy.reads
    assert len(near.batches) <= 2


def test_parts_of_another_length_than_promised_are_not_believed(client, near, parts):
    near.proxy.offers["locate"] = False
    near.mangle = lambda whole: rewrite(whole, length=9) + whole[16:25] + whole[26:]
    assert client.read_many(parts, range(10)) == [bytes(range(10 * i, 10 * i + 10)) for i in range(10)]
    assert len(near.proxy.reads) == 10


def located(**fields):
    """Return a function that changes fields in the first record of a locate answer."""
    record = struct.Struct("<IHHQQQQB7x64s")
    names = ("index", "status", "file", "header_offset", "offset", "length", "position", "source", "header")

    def mangle(answer):
        start = 8 + struct.unpack_from("<I", answer)[0]
        values = dict(zip(names, record.unpack_from(answer, start), strict=True)) | fields
        return answer[:start] + record.pack(*values.values()) + answer[start + record.size :]

    return mangle


@pytest.mark.parametrize(
    "mangle",
    [
        lambda answer: answer[:-1],
        lambda answer: answer[:-112],
        lambda answer: answer[:4],
        lambda answer: answer.replace(b"files", b"filez"),
        lambda answer: answer.replace(b'{"files"', b'["files"'),
        lambda _answer: struct.pack("<II", 1 << 17, 0) + b"[" * (1 << 17),
        located(index=99),
        located(status=404),
        located(status=0),
        located(file=7),
        located(length=1 << 63),
        located(position=1),
        located(offset=1 << 61),
        located(header=b"x" * 64),
        located(header_offset=64),
    ],
)
def test_a_locate_answer_that_is_wrong_is_made_up_for_by_batch(client, manifest, near, mangle):
    near.keep_all()
    client.read_many(manifest, IDS[:2])
    near.mangle_locate = mangle
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert len(near.batches) == 1
    assert not near.proxy.reads


def test_a_located_part_of_another_length_than_promised_is_not_believed(client, near, parts):
    near.keep("shard")
    for segment in near.records(0, "shard", 0, 10):
        assert len(segment) == 112
    client.read_many(parts, [0])
    near.mangle_locate = located(length=1 << 40, index=0)
    assert client.read_many(parts, [1, 0]) == [bytes(range(10, 20)), bytes(range(10))]


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20000,
        b"x: 1\r\n" * 200,
    ],
)
def test_what_is_no_http_is_made_up_for_by_gets(data, near, head):
    client, manifest = data
    near.proxy.more["batch"] = lambda handler, _: (handler.wfile.write(head), handler.hang_up())
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert len(near.proxy.reads) == 12


@pytest.mark.parametrize(
    "chunks", [b"-5\r\nabcde", b"5x\r\nabcde", b"0x5\r\nabcde", b"5\r\nabcdeXX5\r\n", b"\r\n\r\n"]
)
def test_damaged_chunks_are_made_up_for_by_gets(data, near, chunks):
    client, manifest = data

    def answer(handler, _):
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.shadeproxy.batch\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + chunks
        )
        handler.hang_up()

    near.proxy.more["batch"] = answer
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    assert len(near.proxy.reads) == 12


@pytest.mark.parametrize("kind", ["locate", "batch"])
def test_an_answer_that_comes_twice_is_not_taken_for_the_next_one(client, manifest, near, kind):
    near.keep_all()
    near.proxy.offers["locate"] = kind == "locate"
    call, sent = getattr(near, kind), threading.Semaphore(0)

    def answer_twice(handler, body):
        call(handler, body)
        call(handler, body)
        sent.release()

    client.read_many(manifest, IDS)  # From now on, a read is one call.
    near.proxy.more[kind] = answer_twice
    for start in range(0, 40, 4):
        ids = list(range(start, start + 4))
        assert client.read_many(manifest, ids) == near.bodies[start : start + 4]
        while sent.acquire(timeout=0.1):
            pass


def test_too_long_a_wait_mid_answer_is_made_up_for_by_gets(make_client, near, proxy):
    client = make_client(proxy, timeout_s=1.0)
    manifest = client.manifest(bucket="train")
    near.proxy.offers["locate"] = False

    def answer(handler, _):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/vnd.shadeproxy.batch")
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(FRAME.pack(0, 200, 0, 0, 500))
        handler.wfile.flush()
        near.proxy.entered.acquire(timeout=5)

    near.proxy.more["batch"] = answer
    assert client.read_many(manifest, IDS) == near.bodies[:12]
    near.proxy.entered.release()
    assert isinstance(manifest, shade.Manifest)
