"""The parts of announced orders that reach the proxy. The training loop sees no error, whatever is
refused.
"""

import logging

import numpy as np
import pytest

from shadeproxy_sdk.announcements import Announcements


def ids(*values):
    return np.array(values, np.uint32)


def test_pieces_go_in_order_the_nearest_epoch_first():
    orders, sent = Announcements(ids_per_piece=2), []
    orders.put(2, ids(9))
    orders.put(1, ids(5, 6, 7))
    while (piece := orders.due()) is not None:
        sent.append((piece.epoch, piece.offset, piece.ids.tolist()))
        orders.arrived(piece)
    assert sent == [(1, 0, [5, 6]), (1, 2, [7]), (2, 0, [9])]


def test_a_new_order_of_an_epoch_replaces_the_old_one_even_halfway():
    orders = Announcements(ids_per_piece=2)
    orders.put(1, ids(5, 6, 7))
    piece = orders.due()
    orders.put(1, ids(1, 2, 3))
    orders.arrived(piece)
    assert orders.due().ids.tolist() == [1, 2]


def test_the_same_order_again_is_not_sent_again():
    orders, order = Announcements(), ids(1)
    assert orders.put(0, order)
    orders.arrived(orders.due())
    assert not orders.put(0, order)
    assert orders.due() is None
    orders.again()
    assert orders.due().offset == 0


def test_a_piece_that_does_not_fit_starts_its_order_anew_once():
    orders = Announcements(ids_per_piece=1)
    orders.put(0, ids(1, 2))
    orders.arrived(orders.due())
    orders.refused(orders.due())
    assert orders.due().offset == 0
    orders.arrived(orders.due())
    orders.refused(orders.due())
    assert orders.due() is None


def test_a_job_sends_what_it_announces(make_job, proxy):
    job = make_job(rank=1, world_size=2)
    order = np.arange(40, dtype=np.uint32)[::-1]
    job.announce(3, order)
    assert job.flush()
    assert proxy.orders == {("run", 3, 1): order.tolist()}
    assert job.stats().announced == 40
    (sent,) = [headers for method, path, headers in proxy.calls if "order" in path]
    assert sent["content-type"] == "application/vnd.shadeproxy.ids"


def test_an_order_that_did_not_arrive_goes_out_later(make_client, make_job, proxy):
    job = make_job(client=make_client(proxy, retry_s=0.0))
    proxy.die()
    job.announce(0, ids(1, 2))
    assert not job.flush()
    proxy.start()
    assert job.flush()
    assert proxy.orders == {("run", 0, 0): [1, 2]}


def test_a_proxy_that_forgot_the_job_is_told_its_orders_again(make_job, proxy):
    job = make_job()
    job.announce(0, ids(1, 2))
    assert job.flush()
    proxy.forget()
    job.progress(1)
    assert job.flush()
    assert job.flush()
    assert proxy.orders == {("run", 0, 0): [1, 2]}


def test_orders_of_past_epochs_are_not_sent(make_job, proxy):
    job = make_job()
    proxy.refuse["order"] = 503
    job.announce(0, ids(1))
    job.flush()
    del proxy.refuse["order"]
    job.begin(1)
    job.announce(1, ids(2))
    assert job.flush()
    assert proxy.orders == {("run", 1, 0): [2]}


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_proxy_without_the_call_is_told_of_once_and_training_goes_on(make_job, proxy, caplog, status):
    job = make_job()
    proxy.refuse["order"] = status
    for epoch in range(3):
        job.announce(epoch, ids(1))
        job.report([epoch], [1.0])
        assert job.flush()
    assert sorted(proxy.scores["run"]) == [0, 1, 2]
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (warning,) = warnings
    assert warning.startswith("Job run: this proxy takes no announced orders")
    assert warning.endswith("Update the proxy")
    assert len({path for _, path, _ in proxy.calls if "order" in path}) == 1


def test_a_refused_order_is_said_and_others_go_on(make_job, proxy, caplog):
    job = make_job()
    proxy.refuse["epochs/0"] = 400
    job.announce(0, ids(1))
    job.announce(1, ids(2))
    assert job.flush()
    assert proxy.orders == {("run", 1, 0): [2]}
    assert "told so" in caplog.text


def test_announcing_returns_while_the_proxy_hangs(make_job, proxy):
    job = make_job()
    proxy.released.clear()
    job.announce(0, ids(1))
    proxy.entered.acquire()
    job.announce(1, ids(2))
    proxy.released.set()
    assert job.flush()
    assert len(proxy.orders) == 2


def test_a_job_that_is_closed_withdraws_its_orders_and_no_other_ranks(make_job, proxy):
    ranks = [make_job(rank=rank, world_size=2) for rank in range(2)]
    for job in ranks:
        for epoch in range(3):
            job.begin(epoch)
            job.announce(epoch, ids(1, 2))
            job.announce(epoch + 1, ids(3))
            assert job.flush()
    assert ranks[0].close()
    assert {rank for _, epoch, rank in proxy.orders if epoch >= 2} == {1}
    assert ranks[0].stats().failures == 0, "that the epoch before was over is no failure"
    assert ranks[1].close()
    assert not {epoch for _, epoch, _ in proxy.orders if epoch >= 1}


def test_what_is_withdrawn_is_not_announced_before(make_job, proxy):
    job = make_job()
    proxy.refuse["order"] = 503
    job.announce(0, ids(1, 2))
    assert not job.flush()
    del proxy.refuse["order"]
    assert job.close()
    assert proxy.pieces == []


def test_a_proxy_that_forgot_the_job_is_not_told_of_it_again_to_withdraw(make_job, proxy):
    job = make_job()
    job.announce(0, ids(1, 2))
    assert job.flush()
    proxy.forget()
    assert job.close()
    assert proxy.jobs == {}


def test_closing_beside_a_dead_proxy_ends_within_its_time(make_job, proxy):
    job = make_job()
    job.announce(0, ids(1, 2))
    assert job.flush()
    proxy.die()
    assert not job.close(timeout_s=5.0)


@pytest.mark.parametrize("epoch", ["a", None, 1.5])
def test_an_order_of_no_epoch_is_left_out_in_words(epoch, caplog):
    orders = Announcements()
    assert not orders.put(epoch, ids(1))
    orders.put(1, ids(2))
    orders.begin(1)
    assert orders.due().ids.tolist() == [2]
    (record,) = caplog.records
    assert record.getMessage() == f"An order was not announced: epoch {epoch!r} is no whole number"
