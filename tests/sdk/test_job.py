import copy
import logging
import math
import pickle
import re
import threading

import numpy as np
import pytest
import torch

import shadeproxy_sdk as shade
from shadeproxy_sdk.scoreboard import Scoreboard, pack_scores


def rank_weight(rank):
    return pytest.approx(math.log(rank + 10), abs=1e-6)


def test_scores_are_ranks_within_the_batch_by_explicit_id(make_job, proxy):
    job = make_job()
    job.report(torch.tensor([30, 5, 17]), torch.tensor([0.5, 9.0, 0.1], requires_grad=True))
    assert job.flush()
    assert proxy.scores["run"] == {17: rank_weight(0), 30: rank_weight(1), 5: rank_weight(2)}


@pytest.mark.parametrize(
    ("ids", "losses"),
    [
        ([1, 2], [0.5, 0.25]),
        (np.array([1, 2], np.uint32), np.array([0.5, 0.25])),
        (torch.tensor([1, 2]), torch.tensor([0.5, 0.25], dtype=torch.bfloat16)),
        (torch.tensor([1, 2], dtype=torch.int32), torch.tensor([[0.5], [0.25]], dtype=torch.float64)),
    ],
)
def test_whatever_holds_numbers_is_taken(make_job, ids, losses):
    job = make_job()
    job.report(ids, losses)
    assert job.weights(0)[[2, 1]].tolist() == [rank_weight(0), rank_weight(1)]
    assert job.mean_loss == 0.375


def test_later_change_of_a_reported_tensor_does_not_matter(make_job):
    job = make_job()
    ids, losses = torch.tensor([1, 2]), torch.tensor([1.0, 2.0])
    job.report(ids, losses)
    ids += 10
    losses.zero_()
    assert np.flatnonzero(np.isfinite(job.weights(0))).tolist() == [1, 2]
    assert job.mean_loss == 1.5


def test_latest_score_of_an_id_wins_and_goes_out_once(make_job, proxy):
    job = make_job()
    proxy.released.clear()  # The sending thread stops in its first call while the job gets further reports.
    job.report([1, 2, 3], [1.0, 2.0, 3.0])
    done = threading.Thread(target=job.flush)
    done.start()
    proxy.entered.acquire()
    job.report([1, 2, 3], [3.0, 2.0, 1.0])
    job.report([1], [1.0])
    proxy.released.set()
    done.join()
    assert job.flush()
    assert proxy.scores["run"] == {1: rank_weight(0), 2: rank_weight(1), 3: rank_weight(0)}
    assert job.stats().sent == 6
    assert job.stats().unsent == 0


def test_report_returns_while_the_proxy_hangs_and_drops_the_oldest(make_job, proxy):
    job = make_job(queue_batches=4)
    proxy.released.clear()
    job.report([0], [1.0])
    waiting = threading.Thread(target=job.flush)
    waiting.start()
    proxy.entered.acquire()
    for sample in range(1, 11):
        job.report([sample], [1.0])
    assert job.stats().reported == 11
    assert job.stats().dropped == 6
    proxy.released.set()
    waiting.join()
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [0, 7, 8, 9, 10]


def test_a_flush_asks_a_proxy_that_has_just_come_back(make_client, make_job, proxy):
    """A flush asks a proxy that has just come back, and does not wait. Without the flush, the job would wait
    a minute before it tries to deliver again.
    """
    job = make_job(client=make_client(proxy, retry_s=60.0))
    proxy.die()
    job.report([1, 2], [1.0, 2.0])
    assert not job.flush()
    proxy.start()
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1, 2]


def test_dead_proxy_keeps_scores_until_it_is_back(make_client, make_job, proxy):
    job = make_job(client=make_client(proxy, retry_s=0.0))
    proxy.die()
    job.report([1, 2], [1.0, 2.0])
    assert not job.flush()
    assert job.stats().unsent == 2
    assert job.stats().failures > 0
    proxy.start()
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1, 2]


def test_scores_that_an_overloaded_proxy_turns_away_are_sent_again(make_job, proxy):
    job = make_job()
    proxy.refuse["scores"] = 503
    job.report([1, 2], [1.0, 2.0])
    assert not job.flush()
    assert (job.stats().sent, job.stats().unsent) == (0, 2)
    del proxy.refuse["scores"]
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1, 2]


def test_proxy_that_forgot_the_job_is_told_again(make_job, proxy, manifest):
    job = make_job()
    proxy.forget()
    job.report([1], [1.0])
    assert job.flush()
    assert sorted(proxy.scores["run"]) == [1]
    assert proxy.digest(manifest.name) == manifest.digest


def test_other_numbering_at_the_proxy_is_replaced(client, make_job, manifest, proxy):
    proxy.datasets[manifest.name].reverse()
    make_job()
    assert proxy.digest(manifest.name) == manifest.digest


@pytest.mark.parametrize(
    ("ids", "losses", "text"),
    [
        ([1, 2], [1.0], "one loss per sample"),
        ([40], [1.0], r"outside 0 .. 39"),
        ([-1], [1.0], r"outside 0 .. 39"),
        ([0.5], [1.0], "not integers"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(2), "one loss per sample"),
        (None, [1.0], "one loss per sample"),
        ([1], ["high"], "could not convert"),
        ([1], object(), "not 'object'"),
    ],
)
def test_wrong_reports_are_counted_and_logged_once_never_raised(make_job, ids, losses, text, caplog):
    job = make_job()
    for _ in range(3):
        job.report(ids, losses)
        job.flush()
    assert job.stats().rejected == 3
    assert job.weights(0) is None
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "Job run: a report was not used" in record.getMessage()
    assert re.search(text, record.getMessage())


def test_losses_that_are_not_finite_are_left_out(make_job):
    job = make_job()
    job.report([1, 2, 3], [math.nan, 0.5, math.inf])
    assert np.flatnonzero(np.isfinite(job.weights(0))).tolist() == [2]
    assert job.stats().not_finite == 2
    assert job.mean_loss == 0.5


def test_scores_that_the_proxy_refuses_are_not_sent_again(make_job, proxy, caplog):
    job = make_job()
    proxy.refuse["scores"] = 400
    job.report([1], [1.0])
    assert job.flush()
    assert (job.stats().sent, job.stats().unsent, job.stats().failures) == (0, 0, 1)
    assert "told so" in caplog.text


def test_refused_registration_is_raised_at_once(make_job, proxy):
    proxy.refuse["jobs"] = 401
    with pytest.raises(shade.ControlError, match="told so"):
        make_job()


def test_timed_loop_reports_position_and_stall(make_job, proxy):
    job = make_job(rank=1, world_size=2)
    job.begin(2)
    for ids in job.timed([([1, 2],), ([3],)]):
        job.report(ids[0], np.ones(len(ids[0])))
    assert job.position == 3
    assert job.flush()
    (step,) = proxy.progress
    assert step.pop("stall_s") > 0
    assert step.pop("compute_s") > 0
    assert step == {"epoch": 2, "rank": 1, "position": 3}
    job.begin(3)
    assert job.position is None
    job.progress(5, stall_s=0.25)
    job.progress(9, stall_s=0.5)
    assert job.flush()
    assert proxy.progress[1:] == [{"epoch": 3, "rank": 1, "position": 9, "stall_s": 0.75}]


def test_a_timed_loader_is_described_and_an_older_proxy_gets_what_it_takes(make_job, proxy):
    data = torch.utils.data.TensorDataset(torch.arange(4))
    job = make_job()
    for _ in job.timed(torch.utils.data.DataLoader(data, batch_size=2)):
        pass
    assert job.flush()
    assert proxy.progress[-1]["loader"] == {"workers": 0, "batch_size": 2}
    proxy.takes_measures = False
    job.begin(1)
    for _ in range(2):
        job.progress(3, stall_s=0.5)
        assert job.flush()
    assert proxy.progress[1:] == [{"epoch": 1, "rank": 0, "position": 3, "stall_s": 0.5}] * 2
    assert proxy.refused == 1


def test_progress_that_did_not_arrive_goes_out_later(make_client, make_job, proxy):
    job = make_job(client=make_client(proxy, retry_s=0.0))
    proxy.die()
    job.progress(1, stall_s=1.0)
    assert not job.flush()
    job.begin(1)
    job.progress(2, stall_s=0.5)
    proxy.start()
    assert job.flush()
    assert [(p["epoch"], p["position"], p["stall_s"]) for p in proxy.progress] == [(0, 1, 1.0), (1, 2, 0.5)]


def test_where_an_epoch_is_resumed_is_told_before_anything_is_read(make_job, proxy):
    job = make_job()
    job.begin(3, 16)
    job.announce(3, np.arange(40, dtype=np.uint32))
    assert job.flush()
    assert proxy.progress == [{"epoch": 3, "rank": 0, "position": 16, "stall_s": 0.0}]
    assert job.position is None
    told = [path.rpartition("/")[2] for method, path, _ in proxy.calls if method in {"PUT", "POST"}]
    # The order is sent before the progress, because a position refers to an order.
    assert told[-2:] == ["order", "progress"]


def test_wrong_progress_never_raises(make_job):
    job = make_job()
    job.progress("far")
    assert job.stats().rejected == 1


def test_a_wait_that_is_no_time_does_not_spoil_later_ones(make_job, proxy):
    job = make_job()
    for position, stall_s in ((5, math.nan), (5, math.inf), (5, -1.0), (-5, 0.0)):
        job.progress(position, stall_s)
    assert job.stats().rejected == 4
    job.progress(7, 0.25)
    assert job.flush()
    assert proxy.progress == [{"epoch": 0, "position": 7, "stall_s": 0.25, "rank": 0}]


def test_batches_that_end_in_something_without_a_length_are_timed(make_job):
    class Lazy:
        def __len__(self):
            raise RuntimeError("not read yet")

    batches = [(torch.rand(2), torch.tensor(3)), (1, 2.5), (torch.rand(2), None), (1, Lazy())]
    assert list(make_job().timed(batches)) == batches


def test_no_report_stops_a_sampler(make_job, caplog):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", batch_size=4)
    job.report([1], [10**400])
    sampler.set_epoch(1)
    assert len(list(sampler)) == 40
    assert job.stats().rejected == 1
    assert "a report was not used" in caplog.text


def test_huge_losses_do_not_spoil_later_draws(make_job):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance", batch_size=4, coverage_epochs=40)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        read = list(sampler)
        job.report(read, np.full(40, 1e308))
    assert math.isfinite(job.mean_loss)
    assert len(set(read)) > 20


def test_timed_passes_any_batch_through(make_job):
    batches = [{"x": 1}, 3, [], (1, 2)]
    assert list(make_job().timed(batches)) == batches


def test_ranks_see_each_others_scores(make_client, make_job, proxy):
    jobs = [make_job(rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    jobs[0].report([1], [1.0])
    jobs[1].report([2, 3], [1.0, 2.0])
    assert jobs[1].flush()
    assert np.flatnonzero(np.isfinite(jobs[0].weights(1))).tolist() == [1, 2, 3]
    proxy.die()
    assert np.flatnonzero(np.isfinite(jobs[0].weights(2))).tolist() == [1]


def test_a_rank_whose_proxy_was_away_a_moment_ago_draws_with_the_others(make_client, make_job, proxy):
    jobs = [make_job(rank=rank, world_size=2, client=make_client(proxy)) for rank in range(2)]
    jobs[1].report([2, 3], [1.0, 2.0])
    assert jobs[1].flush()
    proxy.die()
    jobs[0].report([1], [1.0])
    assert not jobs[0].flush()
    proxy.start()
    assert np.flatnonzero(np.isfinite(jobs[0].weights(1))).tolist() == [1, 2, 3]


def test_residency_is_a_bit_per_sample(make_job, proxy):
    job = make_job()
    proxy.resident = bytes([0b00000101, 0, 0, 0, 0b10000000])
    assert np.flatnonzero(job.residency()).tolist() == [0, 2, 39]
    proxy.resident = b"\0"
    assert job.residency() is None


def test_close_is_idempotent_and_later_reports_are_harmless(make_job, proxy):
    job = make_job()
    job.report([1], [1.0])
    assert job.close()
    assert sorted(proxy.scores["run"]) == [1]
    assert job.close()
    job.report([2], [1.0])
    assert not [t for t in threading.enumerate() if t.name == "shade-job-run"]


def test_many_scores_go_in_bounded_posts():
    board = Scoreboard(10)
    board.apply(0, np.arange(10), np.arange(10.0))
    first, second = board.take(6), board.take(6)
    assert (first[0].tolist(), second[0].tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    board.put_back(first[0])
    assert board.unsent == 6


def test_mean_loss_is_that_of_the_latest_epoch():
    board = Scoreboard(4)
    assert board.mean_loss() is None
    board.apply(0, [0, 1], [1.0, 3.0])
    board.apply(1, [0], [5.0])
    board.apply(1, [1], [6.0])
    assert board.mean_loss() == 5.5


def test_binary_scores_format_is_frozen():
    packed = pack_scores(np.array([1, 258], np.uint32), np.array([1.0, -2.0], np.float32))
    assert packed.hex() == "02000000" + "01000000" + "02010000" + "0000803f" + "000000c0"


def test_a_closed_job_gives_its_names_free(make_client, make_job, proxy):
    make_job().close()
    assert proxy.ended == {"run": {0}}
    proxy.put("train", more=b"more")
    client = make_client(proxy)
    manifest = client.manifest(bucket="train")
    again = make_job(client=client, dataset=manifest)
    assert (again.name, proxy.jobs["run"]["dataset"], len(manifest)) == ("run", manifest.name, 41)
    assert set(proxy.jobs) == {"run"}
    assert set(proxy.datasets) == {manifest.name}


def test_a_killed_job_keeps_its_names_and_the_next_goes_on_by_others(make_client, make_job, proxy, caplog):
    old = make_job().manifest  # This job is never closed, like a job whose process was killed.
    proxy.put("train", more=b"more")
    ranks = []
    for rank in (0, 1):
        client = make_client(proxy)
        manifest = client.manifest(bucket="train")
        ranks.append(make_job(client=client, dataset=manifest, rank=rank, world_size=2))
    assert {job.name for job in ranks} == {f"run.{manifest.digest[7:15]}"}
    assert (manifest.name, len(manifest)) == (f"{old.name}.2", 41)
    assert len(proxy.datasets[old.name]) == 40
    assert f"This run goes on as job '{ranks[0].name}', not 'run'" in caplog.text
    assert f"This run registers the present objects as '{old.name}.2'" in caplog.text
    ranks[0].report([40], [1.0])
    assert ranks[0].flush()
    assert list(proxy.scores[ranks[0].name]) == [40]


def test_samples_of_ones_own_whose_name_is_taken_get_another(make_client, make_job, proxy):
    make_job()
    client = make_client(proxy)
    own = shade.Manifest.from_entries(proxy.jobs["run"]["dataset"], [shade.Entry("train", "0/000")])
    job = make_job("other", client=client, dataset=own)
    assert (job.name, len(proxy.datasets[proxy.jobs["other"]["dataset"]])) == ("other", 1)


def test_a_proxy_without_room_for_a_job_does_not_stop_training(make_job, proxy, caplog):
    proxy.refuse["jobs"] = 409
    job = make_job()
    assert "told so" in caplog.text
    job.report([1], [1.0])
    del proxy.refuse["jobs"]
    job.report([2], [1.0])
    assert job.flush()
    assert 2 in proxy.scores["run"]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_job_that_is_pickled_or_copied_says_what_to_do_instead(make_job, copied):
    job = make_job()
    for holder in (job, shade.ShadeSampler(job)):
        with pytest.raises(shade.ConfigError, match="give workers the dataset without the job"):
            copied(holder)
