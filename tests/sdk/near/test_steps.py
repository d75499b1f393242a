"""Locate calls in steps: the proxy locates the next samples while the client copies the previous ones."""

import os
import threading

import numpy as np
import pytest

from shadeproxy_sdk import bulk

STEP = 6
IDS = range(16)


@pytest.fixture
def warm(client, near, even, monkeypatch):
    """Return a manifest of samples with one length, and their bodies. The samples are all cached in files,
    and the client knows their length.
    """
    monkeypatch.setattr(bulk, "STEP", STEP)
    manifest, bodies = even
    near.keep_all()
    client.read_many(manifest, IDS[:2])
    near.locates.clear()
    return manifest, bodies


def asked(near):
    return [len(request["items"]) for request in near.locates]


def test_the_next_step_is_asked_for_before_this_one_is_copied(client, near, warm, monkeypatch):
    manifest, bodies = warm
    read, ask = os.preadv, near.ask
    second = threading.Event()
    in_time = []

    def listening(*call):
        if len(near.locates) == 1:
            second.set()
        return ask(*call)

    def read_when_asked(*call):
        in_time.append(all(in_time) and second.wait(20))
        return read(*call)

    monkeypatch.setattr(near, "ask", listening)
    monkeypatch.setattr(os, "preadv", read_when_asked)
    assert client.read_many(manifest, IDS) == bodies
    assert all(in_time)
    assert asked(near) == [6, 6, 4]


def test_samples_of_unknown_length_are_looked_for_at_once(client, near, manifest, monkeypatch):
    monkeypatch.setattr(bulk, "STEP", STEP)
    near.keep_all()
    assert client.read_many(manifest, range(40)) == near.bodies
    assert asked(near) == [1, 39]


def test_what_was_copied_before_a_refusal_is_kept(client, near, warm):
    manifest, bodies = warm
    ask = near.ask

    def refuse_later(*call):
        near.refusals = {"locate": (503, "busy")} if near.locates else {}
        return ask(*call)

    near.ask = refuse_later
    assert client.read_many(manifest, IDS) == bodies
    assert asked(near) == [6, 6]
    assert [len(request["items"]) for request in near.batches] == [10]


def test_a_call_that_nobody_waits_for_any_more_ends_its_connection(client, near, warm):
    manifest, bodies = warm
    near.mangle_locate = lambda body: body[:-1]
    assert client.read_many(manifest, IDS) == bodies
    near.mangle_locate = lambda body: body
    # The late answer to the broken call must not be taken for the answer to another call.
    assert client.read_many(manifest, IDS[::-1]) == bodies[::-1]


def test_what_is_evicted_in_one_step_is_read_again(client, near, warm):
    manifest, bodies = warm
    near.evict_after_locate = {f"even/{number:02d}" for number in (2, 7, 15)}
    assert client.read_many(manifest, IDS) == bodies
    assert {item["key"] for item in near.batches[0]["items"]} == near.evict_after_locate


def test_a_restart_between_steps_costs_one_more_connection(client, near, warm):
    manifest, bodies = warm
    ask = near.ask

    def hang_up_once(handler, *call):
        if len(near.locates) == 1:
            near.ask = ask
            handler.hang_up()
            near.locates.append({"items": []})
            return None
        return ask(handler, *call)

    near.ask = hang_up_once
    assert client.read_many(manifest, IDS) == bodies
    assert asked(near) == [6, 0, 6, 4]
    assert not near.batches


def test_rows_of_an_array_are_filled_step_by_step(client, near, warm):
    manifest, bodies = warm
    out = np.zeros((16, 50), np.uint8)
    client.read_into(manifest, list(IDS), out)
    assert [row.tobytes() for row in out] == bodies
    assert asked(near) == [6, 6, 4]
