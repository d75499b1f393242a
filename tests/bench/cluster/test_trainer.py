"""The trainer of a cluster run finds each hint that a proxy lacks, or has and should not have."""

import asyncio
import random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from shadeproxy_bench.reliability.cluster import trainer as module
from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.http import Answer
from shadeproxy_bench.reliability.cluster.journal import Journal
from shadeproxy_bench.reliability.cluster.judge import Judge
from shadeproxy_bench.reliability.cluster.nodes import LOCAL, OWNED, Shape
from shadeproxy_bench.reliability.cluster.trainer import NodeHints, Trainer, digest_of_order


class Proxies:
    """Proxies that answer the trainer's calls from one set of hints. A test spoils the hints of one."""

    def __init__(self):
        self.nodes = self.up = [
            SimpleNamespace(name=name, up=True, process=SimpleNamespace(turn=0)) for name in "ab"
        ]
        self.shape = Shape(OWNED, 0.5, 0)
        self.losses = 0
        self.orders, self.frozen = {}, {}
        self.scores = np.full(module.SAMPLES, np.nan, np.float32)
        self.spoil = self.spoil_scores = lambda _node, hints: hints

    async def ask(self, node, method, path, body=b"", _fields=None):
        *_, last = parts = path.partition("?")[0].split("/")
        if path.startswith("/v1/datasets"):
            return Answer(200, {}, b"{}")
        if last == "hints":
            hints = NodeHints("digest", dict(self.orders))
            return Answer(200, {}, msgspec.json.encode(self.spoil(node, hints)))
        if last == "order":
            rank = path.rpartition("=")[2]
            self.orders[f"{parts[-2]}/{rank}"] = digest_of_order(np.frombuffer(body, "<u4"))
        elif last == "progress":
            told = msgspec.json.decode(body)
            past = [at for at in self.orders if int(at.split("/")[0]) < told["epoch"]]
            for at in past:
                self.orders.pop(at, None)
        elif last == "scores" and "epochs" in parts:
            column = self.frozen.setdefault(parts[-2], self.scores.tobytes())
            return Answer(200, {}, column)
        elif last == "scores" and method == "POST":
            count = int.from_bytes(body[:4], "little")
            self.scores[np.frombuffer(body, "<u4", count, 4)] = np.frombuffer(
                body, "<f4", count, 4 + 4 * count
            )
        elif last == "scores":
            return Answer(200, {}, self.spoil_scores(node, self.scores.copy()).tobytes())
        return Answer(200, {}, b'{"digest": "digest"}')


@pytest.fixture
def proxies(monkeypatch):
    monkeypatch.setattr(module, "SAMPLES", 500)
    monkeypatch.setattr(module, "_BATCH", 50)
    monkeypatch.setattr(module, "_SAME_S", 0.0)
    found = Proxies()
    monkeypatch.setattr(Trainer, "_ask", lambda _trainer, *asked: found.ask(*asked))
    monkeypatch.setattr(module, "BOUND_S", 0.0)
    return found


@pytest.fixture
async def new_trainer(proxies, monkeypatch):
    judge = Judge(Found(1, 0.5, OWNED), [SimpleNamespace(offences=[])], Journal(), proxies, None)
    monkeypatch.setattr(judge, "_write_down", lambda *_: None)
    trainer = Trainer(proxies, judge, random.Random(1), 1.0)
    yield trainer
    await trainer.end()


@pytest.fixture
async def trainer(new_trainer):
    await new_trainer.start()
    return new_trainer


def failures(trainer):
    return [failure.partition("s: ")[2] for failure in trainer._judge.found.failures]


async def test_equal_hints_are_right_again_and_again(trainer):
    for _ in range(3):
        for step in (trainer._score, trainer._report, trainer._advance):
            await step()
        await trainer.agree()
    assert failures(trainer) == []
    assert trainer._judge.found.hints["comparisons of all hints"] == 3


async def test_no_fault_happens_before_all_proxies_have_the_first_hints(new_trainer, proxies, monkeypatch):
    # The proxy that got the first scores could die before it has passed them on.
    asked = []

    def spoil(node, scores):
        asked.append(node)
        return scores * np.nan if node.name == "b" and len(asked) < 5 else scores

    monkeypatch.setattr(module, "BOUND_S", 30.0)
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    proxies.spoil_scores = spoil
    await new_trainer.start()
    assert len(asked) >= 5
    assert failures(new_trainer) == []


def without(epoch):
    def spoil(node, hints):
        if node.name == "b":
            hints.orders = {at: digest for at, digest in hints.orders.items() if at != f"{epoch}/1"}
        return hints

    return spoil


async def test_an_order_that_is_missing_or_another_is_found(trainer, proxies):
    proxies.spoil = without(2)
    await trainer.agree()
    assert any("b lacks the order of epoch 2, rank 1" in failure for failure in failures(trainer))
    proxies.orders["2/1"] = "another"
    assert "a has another order of epoch 2, rank 1" in await trainer._lack(proxies.nodes[0])


async def test_an_order_that_a_dead_process_answered_may_be_missing_once(trainer, proxies):
    proxies.spoil = without(2)
    for node in proxies.nodes:
        node.process.turn += 1
    assert await trainer._lack(proxies.nodes[1]) == ""
    proxies.spoil = without(-1)
    await trainer.agree()
    proxies.spoil = without(3)
    assert await trainer._lack(proxies.nodes[1]), "all had it in the pause before"


@pytest.mark.parametrize(
    ("value", "told"), [(np.nan, "lacks the scores of 7 samples"), (1.0, "scores of call 1, odd or outdated")]
)
async def test_scores_that_are_missing_or_old_are_found(trainer, proxies, value, told):
    await trainer.agree()
    assert failures(trainer) == []

    def spoil(node, scores):
        if node.name == "a":
            scores[:7] = value
        return scores

    proxies.spoil_scores = spoil
    await trainer.agree()
    assert any(told in failure for failure in failures(trainer))


async def test_old_scores_are_right_only_after_the_engine_lost_its_data(trainer, proxies):
    await trainer._post_scores(np.arange(100))
    await trainer.agree()
    proxies.spoil_scores = lambda _node, scores: np.where(np.arange(len(scores)) < 50, 2.0, scores)
    node = proxies.nodes[0]
    assert "scores of call 2, odd or outdated" in await trainer._lack(node)
    proxies.losses += 1
    assert await trainer._lack(node) == ""
    proxies.spoil_scores = lambda _node, scores: np.where(np.arange(len(scores)) < 150, 2.0, scores)
    assert "odd or outdated" in await trainer._lack(node), "call 2 scored 100 samples"


async def test_ranks_that_would_draw_from_different_columns_are_found(trainer, proxies):
    await trainer.agree()
    proxies.frozen[next(iter(proxies.frozen))] = b"another"
    await trainer.agree()
    assert any("frozen columns of epoch" in one for one in trainer._judge.found.failures)


async def test_a_call_that_no_proxy_answers_is_a_violation(trainer, monkeypatch):
    async def refused(*_):
        await asyncio.sleep(0)
        return Answer(503, {}, b"")

    monkeypatch.setattr(Trainer, "_ask", refused)
    trainer._patience_s = 0.0
    await trainer._report()
    assert trainer._judge.found.violations == {"hints": 2}


async def test_orders_of_past_epochs_stay_only_where_each_proxy_keeps_its_own_pages(trainer, proxies):
    await trainer._advance()
    proxies.orders["0/0"] = "past"
    assert "has orders" in await trainer._differ(proxies.nodes[0])
    proxies.shape = Shape(LOCAL, 0.5, 0)
    assert "has orders" not in await trainer._differ(proxies.nodes[0])
