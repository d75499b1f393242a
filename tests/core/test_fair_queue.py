"""The fair queue. Clients are served in turn, and the waiters of one client in the order in which
they came.
"""

import pytest

from shadeproxy.core.fair_queue import FairQueue


def served(turns):
    return [turns.take() for _ in range(turns.count)]


def test_clients_take_turns_and_each_keeps_its_own_order():
    turns = FairQueue()
    for client, waiter in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]:
        turns.add(client, waiter)
    assert turns.first() == "a1"
    assert served(turns) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not turns.count


def test_who_comes_back_waits_one_round_and_not_for_all_that_others_asked():
    turns = FairQueue()
    for number in range(200):
        turns.add("greedy", f"greedy {number}")
    order = []
    for number in range(10):
        turns.add("modest", f"modest {number}")
        order += [turns.take(), turns.take()]
    assert [name for name in order if name.startswith("modest")] == [f"modest {n}" for n in range(10)]


def test_who_gives_up_is_out_and_leaves_the_rest_as_it_was():
    turns = FairQueue()
    for client, waiter in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1")]:
        turns.add(client, waiter)
    turns.remove("b", "b1")
    turns.remove("a", "a1")
    assert turns.count == 2
    assert served(turns) == ["a2", "c1"]
    with pytest.raises(KeyError):
        turns.remove("b", "b1")


def test_who_may_not_is_passed_over_and_keeps_his_place():
    turns = FairQueue()
    for client in "abc":
        turns.add(client, f"{client}1")
    assert turns.take(lambda client: client != "a") == "b1"
    assert turns.take(lambda client: client == "z") is None
    assert served(turns) == ["a1", "c1"]
