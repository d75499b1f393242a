import asyncio
import io
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from shadeproxy.api.control import bodies, jobs
from shadeproxy.core.errors import NotFeasible
from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.needs import NO_SHARE, JobNeed

BINARY = {"Content-Type": "application/vnd.shadeproxy.scores"}


def pack(ids, scores):
    ids, scores = np.array(ids, dtype="<u4"), np.array(scores, dtype="<f4")
    return len(ids).to_bytes(4, "little") + ids.tobytes() + scores.tobytes()


class Watched:
    """Notes the jobs about whose share it is asked."""

    def __init__(self, sharing):
        self.sharing, self.asked = sharing, []

    def share_of(self, name):
        self.asked.append(name)
        return self.sharing.share_of(name)


async def column(client, job):
    answer = await client.get(f"{job}/scores")
    assert answer.status == 200
    return np.frombuffer(await answer.read(), dtype="<f4")


def weights(context, *keys):
    refs = [ObjectRef(*key.split("/", 1)) for key in keys]
    hashes = np.array([object_hash(ref) for ref in refs], dtype=np.uint64)
    return context.hints.weights_of(hashes, np.zeros(len(hashes), dtype=np.uint32)).tolist()


# ------------------------------------------------------------------ register


async def test_a_job_shows_what_it_is(client, job, clock):
    clock.advance(5)
    shown = await (await client.get(job)).json()
    assert shown["digest"].startswith("sha256:")
    del shown["digest"]
    assert shown == {
        "job": "resnet",
        "dataset": "train",
        "count": 10,
        "world_size": 2,
        "weight": 1.0,
        "expires_s": 3600.0,
        "silent_s": 5.0,
        "live": True,
        "in_use": True,
        "scores": {"known": 0, "mean": None},
        "progress": {},
        "order": None,
        "order_trust": 0.5,
        "score_trust": 0.5,
        "gap_reads": None,
        "silent_reads": 0,
        "trust_reason": "it announces nothing and posts no scores",
        "best_effort": False,
        "share": asdict(NO_SHARE),
    }
    listed = await (await client.get("/v1/jobs")).json()
    assert [item["job"] for item in listed["jobs"]] == ["resnet"]


async def test_calls_that_speak_of_another_manifest_are_refused(client, job, refused):
    digest = (await (await client.get(job)).json())["digest"]
    mine, others = ({"x-shade-manifest": told} for told in (digest, "sha256:" + 64 * "0"))
    scores, step = {"ids": [1], "scores": [2]}, {"epoch": 0, "rank": 0, "position": 4}
    assert (await client.post(f"{job}/scores", json=scores, headers=mine)).status == 200
    for answer in (
        await client.post(f"{job}/scores", json={"ids": [1], "scores": [9]}, headers=others),
        await client.post(f"{job}/progress", json=step, headers=others),
        await client.put(f"{job}/epochs/0/order?rank=0", json={"ids": [1]}, headers=others),
        await client.delete(f"{job}/ranks/0", headers=others),
    ):
        text = await refused(answer, 409, "conflict")
        assert "job 'resnet' is on another manifest than sha256:000" in text
        assert "register this run as a job of another name" in text
    shown = await (await client.get(job)).json()
    assert (shown["progress"], shown["order"], shown["scores"]["mean"]) == ({}, None, 2.0)
    await refused(await client.get("/v1/jobs/nobody", headers=mine), 404, "unknown_name")


async def test_registering_answers_with_the_manifest_and_is_not_refused_for_one(client, job):
    told = {"x-shade-manifest": "sha256:" + 64 * "0"}
    digest = (await (await client.get(job)).json())["digest"]
    for path in ("/v1/jobs/first", job):
        answer = await client.put(path, json={"dataset": "train"}, headers=told)
        assert (answer.status, (await answer.json())["digest"]) == (200, digest)


async def test_every_rank_may_register_and_scores_stay(client, job):
    await client.post(f"{job}/scores", json={"ids": [1], "scores": [2]})
    answer = await client.put(job, json={"dataset": "train", "world_size": 4, "weight": 2})
    shown = await answer.json()
    assert (shown["world_size"], shown["weight"], shown["scores"]["known"]) == (4, 2.0, 1)


async def test_another_dataset_under_a_registered_name_conflicts(client, job, refused):
    text = await refused(await client.put(job, json={}), 409, "conflict")
    assert "registered with dataset 'train'" in text
    assert "delete the job first" in text


async def test_a_job_that_ended_begins_anew_on_another_dataset(client, job, refused):
    await client.post(f"{job}/scores", json={"ids": [1], "scores": [2]})
    for rank in (0, 1):
        await client.delete(f"{job}/ranks/{rank}")
    assert (await client.put(job, json={})).status == 200
    shown = await (await client.get(job)).json()
    assert (shown["dataset"], shown["scores"]["known"], shown["in_use"]) == (None, 0, True)
    assert (await client.put("/v1/jobs/resnet", json={"dataset": "train"})).status == 409


async def test_a_rank_that_ended_is_back_when_it_says_something(client, job, refused):
    await refused(await client.delete(f"{job}/ranks/2"), 400, "invalid_request")
    await refused(await client.delete("/v1/jobs/none/ranks/0"), 404, "unknown_name")
    for rank in (0, 1):
        await client.delete(f"{job}/ranks/{rank}")
    await client.post(f"{job}/progress", json={"epoch": 0, "rank": 1, "position": 1})
    assert (await (await client.get(job)).json())["in_use"]


async def test_the_same_samples_under_another_name_are_the_same_dataset(client, job):
    lines = "".join(f'{{"bucket": "b", "key": "k{number}"}}\n' for number in range(10))
    await client.put("/v1/datasets/copy", data=lines, headers={"Content-Type": "application/x-ndjson"})
    shown = await (await client.put(job, json={"dataset": "copy", "world_size": 2})).json()
    assert (shown["dataset"], shown["in_use"]) == ("train", True)


async def test_an_unknown_dataset_is_told(client, refused):
    answer = await client.put("/v1/jobs/new", json={"dataset": "nothing"})
    assert "PUT /v1/datasets/nothing" in await refused(answer, 404, "unknown_name")
    await refused(await client.get("/v1/jobs/new"), 404, "unknown_name")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"world_size": 0}, "`$.world_size`"),
        ({"weight": 0}, "`$.weight`"),
        ({"weight": "1"}, "`$.weight`"),
        ({"expires_s": 0}, "`$.expires_s`"),
        ({"world": 2}, "unknown field `world`"),
        ([], "Expected `object`"),
    ],
)
async def test_a_bad_registration_names_the_field(client, refused, body, text):
    answer = await client.put("/v1/jobs/new", json=body)
    assert text in await refused(answer, 400, "invalid_request")


async def test_broken_json_is_told_with_its_position(client, refused):
    headers = {"Content-Type": "application/json"}
    answer = await client.put("/v1/jobs/new", data=b'{"weight": oops}', headers=headers)
    assert "(byte 11)" in await refused(answer, 400, "malformed_body")
    answer = await client.put("/v1/jobs/new", data=b'{"dataset": "\xff"}', headers=headers)
    await refused(answer, 400, "malformed_body")


async def test_what_curl_sends_without_a_type_is_json(client):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await client.put("/v1/jobs/new", data=b"{}", headers=headers)).ok


async def test_another_type_is_told_which(client, refused):
    answer = await client.put("/v1/jobs/new", data=b"{}", headers={"Content-Type": "text/plain"})
    assert "send it as application/json" in await refused(answer, 415, "unsupported_media_type")


async def test_without_a_content_type_the_error_says_that_it_is_missing(client, refused):
    answer = await client.put("/v1/jobs/new", data=b"{}", skip_auto_headers=("Content-Type",))
    text = await refused(answer, 415, "unsupported_media_type")
    assert "the field Content-Type is missing" in text
    assert "send it as application/json" in text


async def test_a_long_body_is_refused(client, refused):
    answer = await client.put("/v1/jobs/new", json={"dataset": "x" * bodies.MAX_JSON_BYTES})
    assert "longer than 65536 bytes" in await refused(answer, 413, "body_too_large")


async def test_a_deleted_job_is_gone_with_its_scores(client, job, context, refused):
    await client.post(f"{job}/scores", json={"ids": [1], "scores": [2]})
    assert (await client.delete(job)).status == 204
    await refused(await client.get(job), 404, "unknown_name")
    await refused(await client.delete(job), 404, "unknown_name")
    assert math.isnan(weights(context, "b/k1")[0])
    await client.put(job, json={"dataset": "train"})
    assert np.isnan(await column(client, job)).all()


# ------------------------------------------------------------------ scores


async def test_the_three_forms_of_scores_do_the_same(client, job, context):
    forms = [
        {"json": {"ids": [0, 1], "scores": [1.0, 3.0]}},
        {"json": {"keys": {"b/k0": 1.0, "b/k1": 3.0}}},
        {"data": pack([0, 1], [1.0, 3.0]), "headers": BINARY},
    ]
    for form in forms:
        await client.delete(job)
        await client.put(job, json={"dataset": "train"})
        answer = await client.post(f"{job}/scores", **form)
        assert await answer.json() == {"applied": 2}
        assert weights(context, "b/k0", "b/k1") == [0.5, 1.5]
        assert math.isnan(weights(context, "b/k2")[0])
        shown = await (await client.get(job)).json()
        assert shown["scores"] == {"known": 2, "mean": 2.0}


async def test_the_column_is_read_back_as_little_endian_floats(client, job):
    await client.post(f"{job}/scores", data=pack([9, 3], [0.5, 7]), headers=BINARY)
    scores = await column(client, job)
    assert len(scores) == 10
    assert (scores[9], scores[3]) == (0.5, 7.0)
    assert np.isnan(scores[[0, 1, 2, 4, 5, 6, 7, 8]]).all()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"ids": [0, 1], "scores": [1]}, (400, "invalid_request", "2 ids but 1 scores")),
        (
            {"ids": [0, 10], "scores": [1, 1]},
            (400, "invalid_request", "ids[1] is 10, but dataset 'train' has 10"),
        ),
        ({"ids": [0, -1], "scores": [1, 1]}, (400, "invalid_request", "`$.ids[1]`")),
        (
            {"ids": [0, 1], "scores": [1, -0.5]},
            (400, "invalid_request", "scores[1] is -0.5: a score is a finite"),
        ),
        ({"ids": [0, 1], "scores": [1, 1e39]}, (400, "invalid_request", "scores[1] is 1e+39")),
        ({"ids": [0, 1], "scores": [1, "x"]}, (400, "invalid_request", "`$.scores[1]`")),
        ({"ids": [0]}, (400, "invalid_request", "either ids and scores, or keys")),
        ({}, (400, "invalid_request", "either ids and scores, or keys")),
        ({"keys": {"b/k0": 1}, "ids": [0], "scores": [1]}, (400, "invalid_request", "either ids and scores")),
        (
            {"keys": {"b/k0": 1, "b/nothing": 1}},
            (400, "invalid_request", "b/nothing is not in dataset 'train'"),
        ),
        ({"keys": {"b/k0": 1, "k1": 1}}, (400, "invalid_request", "'k1' is not BUCKET/KEY")),
        ({"keys": {"b/k0": 1, "b/k1": -1}}, (400, "invalid_request", "scores[1] is -1")),
    ],
)
async def test_a_bad_batch_of_json_changes_nothing(client, job, refused, body, told):
    status, code, text = told
    before = {"ids": [0, 1], "scores": [1.0, 3.0]}
    assert (await client.post(f"{job}/scores", json=before)).status == 200
    assert text in await refused(await client.post(f"{job}/scores", json=body), status, code)
    scores = await column(client, job)
    assert scores[:2].tolist() == [1.0, 3.0]
    assert np.isnan(scores[2:]).all()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
async def test_json_has_no_nan(client, job, refused, number):
    headers = {"Content-Type": "application/json"}
    data = f'{{"ids": [0], "scores": [{number}]}}'
    answer = await client.post(f"{job}/scores", data=data, headers=headers)
    assert "NaN and Infinity are not JSON" in await refused(answer, 400, "malformed_body")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", (400, "invalid_request", "0 bytes hold no count")),
        (b"\1\0", (400, "invalid_request", "2 bytes hold no count")),
        (pack([0], [1])[:-1], (400, "invalid_request", "count 1 makes 12 bytes, but 11 came")),
        (pack([0], [1]) + b"x", (400, "invalid_request", "count 1 makes 12 bytes, but 13 came")),
        (b"\xff\xff\xff\xff", (400, "invalid_request", "count 4294967295 makes")),
        (pack([0, 1], [1, math.nan]), (400, "invalid_request", "scores[1] is nan")),
        (pack([0, 1], [math.inf, 1]), (400, "invalid_request", "scores[0] is inf")),
        (pack([0, 1], [1, -1]), (400, "invalid_request", "scores[1] is -1")),
        (pack([0, 4294967295], [1, 1]), (400, "invalid_request", "ids[1] is 4294967295")),
    ],
)
async def test_a_bad_binary_batch_changes_nothing(client, job, refused, data, told):
    status, code, text = told
    answer = await client.post(f"{job}/scores", data=data, headers=BINARY)
    assert text in await refused(answer, status, code)
    assert np.isnan(await column(client, job)).all()


async def test_an_empty_batch_is_no_error(client, job):
    answer = await client.post(f"{job}/scores", data=pack([], []), headers=BINARY)
    assert await answer.json() == {"applied": 0}
    answer = await client.post(f"{job}/scores", json={"ids": [], "scores": []})
    assert await answer.json() == {"applied": 0}


async def test_too_many_scores_are_refused(client, job, refused):
    many = (1 << 18) + 1
    answer = await client.post(
        f"{job}/scores", data=io.BytesIO(pack([0] * many, [1.0] * many)), headers=BINARY
    )
    assert "at most 262144" in await refused(answer, 400, "invalid_request")


async def test_a_body_of_scores_over_the_limit_is_refused(client, job, refused, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_SCORES_BYTES", 100)
    answer = await client.post(f"{job}/scores", data=bytes(101), headers=BINARY)
    assert "longer than 100 bytes" in await refused(answer, 413, "body_too_large")


async def test_json_too_long_to_decode_inline_goes_the_other_way_and_works(client, job):
    ids = [0, 1] * 8000
    answer = await client.post(f"{job}/scores", json={"ids": ids, "scores": [1.5] * len(ids)})
    assert await answer.json() == {"applied": len(ids)}


async def test_scores_of_an_unknown_job_and_a_wrong_type(client, job, refused):
    answer = await client.post("/v1/jobs/nobody/scores", json={"ids": [], "scores": []})
    assert "PUT /v1/jobs/nobody" in await refused(answer, 404, "unknown_name")
    await refused(await client.get("/v1/jobs/nobody/scores"), 404, "unknown_name")
    answer = await client.post(f"{job}/scores", data=b"", headers={"Content-Type": "text/csv"})
    assert "vnd.shadeproxy.scores" in await refused(answer, 415, "unsupported_media_type")


async def test_a_job_without_a_dataset_scores_any_key(client, context, refused):
    assert (await client.put("/v1/jobs/free", json={})).status == 200
    answer = await client.post("/v1/jobs/free/scores", json={"keys": {"b/x": 1, "b/y": 3}})
    assert await answer.json() == {"applied": 2}
    assert weights(context, "b/x", "b/y") == [0.5, 1.5]
    assert (await column(client, "/v1/jobs/free")).tolist() == [1.0, 3.0]
    answer = await client.post("/v1/jobs/free/scores", json={"ids": [5], "scores": [1]})
    assert "the scored objects of 'free' has 2 samples" in await refused(answer, 400, "invalid_request")


async def test_scores_checked_for_a_job_that_is_then_replaced_are_not_applied(client, job, context, refused):
    batch = context.hints.check_by_ids("resnet", [0], [1.0])
    await client.delete(job)
    await client.delete("/v1/datasets/train")
    await client.put(job, json={})
    with pytest.raises(Exception, match="registered again meanwhile"):
        context.hints.apply("resnet", batch, 0.0)


# ------------------------------------------------------------------ progress and residency


async def test_a_position_of_ten_to_the_fifteenth_is_refused_with_what_to_change(client, job, refused):
    body = {"epoch": 3, "rank": 1, "position": 10**15, "stall_s": 0.25}
    text = await refused(await client.post(f"{job}/progress", json=body), 400, "invalid_request")
    assert "position 1000000000000000 in epoch 3: at most 16777216 is believed" in text
    assert "position is how many samples this rank has finished in this epoch" in text
    assert (await (await client.get(job)).json())["progress"] == {}


async def test_progress_is_shown_and_stall_counted(client, job, context):
    body = {"epoch": 3, "rank": 1, "position": 512, "stall_s": 0.25}
    assert (await client.post(f"{job}/progress", json=body)).status == 204
    assert (await client.post(f"{job}/progress", json=body | {"position": 600})).status == 204
    shown = await (await client.get(job)).json()
    assert shown["progress"] == {"1": {"epoch": 3, "position": 600}}
    assert context.stats.snapshot()["jobs"]["resnet"]["epochs"]["3"]["stall_s"] == 0.5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 2}, "rank 2 of job 'resnet', whose world size is 2"),
        ({"epoch": -1}, "`$.epoch`"),
        ({"position": 1.5}, "`$.position`"),
        ({"stall_s": -1}, "`$.stall_s`"),
    ],
)
async def test_bad_progress_counts_nothing(client, job, refused, change, text):
    body = {"epoch": 3, "rank": 1, "position": 512, "stall_s": 0.25} | change
    answer = await client.post(f"{job}/progress", json=body)
    assert text in await refused(answer, 400, "invalid_request")
    assert (await (await client.get("/v1/stats")).json())["jobs"] == {}
    assert (await (await client.get(job)).json())["progress"] == {}


async def test_residency_is_a_bitmap_with_an_etag(client, job, backend):
    backend.resident = [ObjectRef("b", "k0"), ObjectRef("b", "k9"), ObjectRef("other", "k1")]
    answer = await client.get(f"{job}/residency")
    assert await answer.read() == bytes([0b00000001, 0b00000010])
    tag = answer.headers["ETag"]
    assert (await client.get(f"{job}/residency", headers={"If-None-Match": tag})).status == 304
    backend.resident.append(ObjectRef("b", "k3"))
    answer = await client.get(f"{job}/residency", headers={"If-None-Match": tag})
    assert answer.status == 200
    assert await answer.read() == bytes([0b00001001, 0b00000010])


async def test_residency_of_a_job_without_a_dataset(client, backend, refused):
    await client.put("/v1/jobs/free", json={})
    text = await refused(await client.get("/v1/jobs/free/residency"), 409, "conflict")
    assert "has no samples | register the objects (PUT /v1/datasets/NAME)" in text
    await client.post("/v1/jobs/free/scores", json={"keys": {"b/x": 1, "b/y": 3}})
    backend.resident = [ObjectRef("b", "y")]
    assert await (await client.get("/v1/jobs/free/residency")).read() == bytes([0b10])


async def test_residency_of_an_unknown_job(client, refused):
    await refused(await client.get("/v1/jobs/nobody/residency"), 404, "unknown_name")


async def test_a_list_of_many_jobs_lets_other_calls_pass_and_shows_no_job_deleted_meanwhile(client, context):
    for number in range(100):
        context.hints.put_job(Job(f"j{number:03d}"), 0.0)
    listing = asyncio.create_task(client.get("/v1/jobs"))
    turns, seen = 0, context.hints.jobs.by_name["j099"]
    context.sharing = Watched(context.sharing)
    while not listing.done():
        await asyncio.sleep(0)
        if 0 < len(context.sharing.asked) < 99 and not turns:
            turns = len(context.sharing.asked)
            context.hints.delete_job("j099")
    shown = [job["job"] for job in (await listing.result().json())["jobs"]]
    assert seen.name not in shown
    assert len(shown) == 99
    assert 0 < turns <= 32


async def test_many_ranks_at_once(client, job):
    async def report(rank):
        body = json.dumps({"ids": [rank], "scores": [rank + 1.0]})
        headers = {"Content-Type": "application/json"}
        answer = await client.post(f"{job}/scores", data=body, headers=headers)
        return answer.status

    assert set(await asyncio.gather(*map(report, range(10)))) == {200}
    assert (await column(client, job)).tolist() == [float(rank + 1) for rank in range(10)]


async def test_a_run_that_begins_draws_from_nothing_that_was_scored_before(client, job, refused):
    spec = {"dataset": "train", "world_size": 2}
    for rank in range(2):
        assert (await client.put(f"{job}?begins={rank}", json=spec)).status == 200
    await client.post(f"{job}/scores", json={"ids": [1], "scores": [2]})
    await client.put(f"{job}?begins=1", json=spec)
    every = np.frombuffer(await (await client.get(f"{job}/scores")).read(), "<f4")
    assert every[1] == 2.0
    await client.put(f"{job}?begins=0&resume_scores=true", json=spec)
    refusal = await client.put(f"{job}?begins=2", json=spec)
    assert "rank 2 of job 'resnet', whose world size is 2" in await refused(refusal, 400, "invalid_request")
    refusal = await client.put(f"{job}?starts=1", json=spec)
    assert "parameters: begins, resume_scores" in await refused(refusal, 400, "invalid_request")


# ------------------------------------------------------------------ needs


class Judge:
    """Judges the needs of jobs: refuses each need of more than 100 samples a second."""

    def judge(self, name, _dataset, need):
        if need.samples_per_s and need.samples_per_s > 100:
            raise NotFeasible(f"job {name!r} would get 100, 0.5 of it", hint="ask for less")

    def share_of(self, _name):
        return replace(NO_SHARE, need="samples_per_s", feasible=True, would_get_per_s=100.0)

    def summary(self):
        return {"mode": "needs"}


async def put(client, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.put(path, data=data, headers={"Content-Type": "application/json"})
    return answer.status, await answer.json()


async def test_a_need_is_answered_with_what_the_job_would_get(client, job, context):
    context.sharing = Judge()
    status, shown = await put(
        client, job, {"dataset": "train", "world_size": 2, "samples_per_s": 50, "weight": 2}
    )
    assert status == 200
    assert (shown["share"]["feasible"], shown["share"]["would_get_per_s"]) == (True, 100.0)
    assert context.hints.jobs.get("resnet").need == JobNeed(samples_per_s=50.0)
    assert (await (await client.get("/v1/stats")).json())["sharing"] == {"mode": "needs"}


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"slowdown": 1.1, "samples_per_s": 5}, (400, "slowdown and samples_per_s: a job has one need")),
        (
            {"slowdown": 1.1, "best_effort": True},
            (400, "best_effort gives up a job's need, but slowdown states"),
        ),
        ({"deadline_s": 5}, (400, "deadline_s 5 is ")),
        ({"slowdown": 0.9}, (400, "Expected `float` >= 1.0 - at `$.slowdown`")),
        ({"samples_per_s": 0}, (400, "Expected `float` > 0.0 - at `$.samples_per_s`")),
        ({"epochs": 0}, (400, "Expected `int` >= 1 - at `$.epochs`")),
        ({"epochs": 3}, (400, "epochs belongs to a deadline")),
        ({"speed": 3}, (400, "Object contains unknown field `speed`")),
        (b'{"slowdown": NaN}', (400, "JSON is malformed")),
        (b'{"samples_per_s": 1e999}', (400, "out of range")),
        ({"samples_per_s": 200}, (422, "job 'resnet' would get 100, 0.5 of it")),
    ],
)
async def test_a_bad_need_changes_nothing(client, job, context, body, refusal):
    status, message = refusal
    context.sharing = Judge()
    before = await (await client.get(job)).json()
    if not isinstance(body, bytes):
        body = {"dataset": "train", "world_size": 5, "weight": 7, **body}
    refused, answer = await put(client, job, body)
    assert refused == status
    assert message in answer["error"]["message"]
    assert await (await client.get(job)).json() == before


async def test_an_infeasible_need_registers_no_job(client, job, context):
    context.sharing = Judge()
    status, answer = await put(client, "/v1/jobs/other", {"dataset": "train", "samples_per_s": 200})
    assert (status, answer["error"]["code"], answer["error"]["hint"]) == (422, "not_feasible", "ask for less")
    assert "other" not in context.hints.jobs


async def test_a_need_for_an_unknown_data_set_is_no_question_of_feasibility(client, context):
    context.sharing = Judge()
    status, answer = await put(client, "/v1/jobs/other", {"dataset": "missing", "samples_per_s": 200})
    assert (status, answer["error"]["message"]) == (404, "dataset 'missing' is not registered")
