"""Judges a conversation of the smuggling attack: its requests, those that the origin got, and the answers."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shadeproxy_bench.reliability.attack.origin import Asked, content, tag_of
from shadeproxy_bench.reliability.attack.rows import Fate
from shadeproxy_bench.reliability.attack.sent import Sent
from shadeproxy_bench.reliability.attack.wire import Ending, Received
from shadeproxy_bench.reliability.kit.answers import Answer, Unreadable, next_answer

_SPAN = re.compile(rb"Range: bytes=(\d+)-(\d+)")
MISSING = "got no answer"
"""A part of each fault that is only that an answer is missing."""
_LATE = "the connection neither goes on nor ends"


class Heard(NamedTuple):
    """The client's side of a conversation. ``received``: until the client stopped waiting. ``asked_to_end``:
    True if the client then closed its sending side. ``ending``: how the connection ended afterwards.
    """

    received: Received
    asked_to_end: bool = False
    ending: Ending = Ending.OPEN


class Judged(NamedTuple):
    """The verdict on a conversation. ``answered``: the status of each whole answer."""

    faults: list[str]
    answered: list[int]


def whole_answers(sent: Sequence[Sent], data: bytes) -> tuple[list[Answer], bytes]:
    """Return the answers in ``data``, of which the last may be incomplete, and the bytes behind them. Raises
    Unreadable.
    """
    answers: list[Answer] = []
    for one in sent:
        if not data:
            break
        answer, data = next_answer(data, one.method.encode())
        answers.append(answer)
        if not answer.whole:
            break
    return answers, data


def are_all_whole(sent: Sequence[Sent], data: bytes) -> bool:
    """Return whether ``data`` has a whole answer to each request, or one that ends the connection."""
    try:
        answers, rest = whole_answers(sent, data)
    except Unreadable:
        return True
    if not answers or not answers[-1].whole:
        return False
    return bool(rest) or len(answers) == len(sent) or answers[-1].last


def judge(sent: Sequence[Sent], asked: Sequence[Asked], heard: Heard) -> Judged:
    """Return the faults of a conversation. ``asked``: the requests at the origin that name its token."""
    faults = list(_at_origin(sent, asked))
    try:
        answers, rest = whole_answers(sent, heard.received.data)
    except Unreadable as error:
        return Judged([*faults, f"bytes that are no answer: {error}"], [])
    whole = [answer for answer in answers if answer.whole]
    if rest:
        faults.append(f"{len(sent)} requests, and more answers: {rest[:200]!r}")
    faults += _answers(sent, asked, answers)
    faults += _end(sent, whole, heard)
    return Judged(faults, [answer.status for answer in whole])


def _at_origin(sent: Sequence[Sent], asked: Sequence[Asked]) -> Iterator[str]:
    last_turn, first_end = -1, next((turn for turn, one in enumerate(sent) if one.row.ends), len(sent))
    counts = dict.fromkeys(range(len(sent)), 0)
    for one in asked:
        if not one.is_whole and one.method not in {"GET", "HEAD"}:
            continue  # The proxy gave the request up: the origin does not carry it out.
        turn = _turn_of(sent, one)
        if turn is None:
            yield f"a request that no client sent: {one.method} {one.target[:200]}"
            continue
        named = f"request {turn} ({sent[turn].row.name})"
        counts[turn] += 1
        if sent[turn].row.fate is Fate.NEVER:
            yield f"{named} was carried out: {one.method} {one.target[:200]}"
        elif turn > first_end:
            yield f"{named} was carried out, behind {sent[first_end].row.name!r}"
        else:
            yield from _differences(named, sent[turn], one)
        if counts[turn] > 1 and one.method not in {"GET", "HEAD"}:
            yield f"{named} was carried out {counts[turn]} times"
        if turn < last_turn:
            yield f"{named} was carried out after request {last_turn}"
        last_turn = max(last_turn, turn)


def _turn_of(sent: Sequence[Sent], asked: Asked) -> int | None:
    """Return the number of the request that the origin got as ``asked``; None if there is none."""
    for turn, one in enumerate(sent):
        if re.search(rf"[/=]{re.escape(one.key)}(?![0-9])", asked.target):
            return turn
    return None


def _differences(named: str, meant: Sent, asked: Asked) -> Iterator[str]:
    if asked.method != ("GET" if meant.method == "HEAD" and asked.method == "GET" else meant.method):
        yield f"{named} became a {asked.method}"
    if not meant.row.loose and asked.target != meant.target:
        yield f"{named} has the target {asked.target[:200]}, not {meant.target[:200]}"
    if not meant.row.bodiless and asked.body != meant.body:
        yield f"{named} has the body {asked.body[:300]!r}, not {meant.body[:300]!r}"
    owns = asked.values("x-amz-meta-own")
    if owns not in (meant.own, []) or (not owns and meant.own and meant.row.fate is Fate.MUST):
        yield f"{named} has the field {owns}, not {meant.own}"
    for name, value in asked.fields:
        if "own-" in value and name != "x-amz-meta-own" and meant.key not in value:
            yield f"{named} has another request's field, {name}: {value[:100]}"


def _answers(sent: Sequence[Sent], asked: Sequence[Asked], answers: Sequence[Answer]) -> Iterator[str]:
    ended = False
    for turn, answer in enumerate(answers):
        one = sent[turn]
        named = f"request {turn} ({one.row.name})"
        if not answer.whole:
            if answer.status:
                yield f"{named} got a part of its answer: {answer.status}"
            return
        if ended:
            yield f"{named} was answered {answer.status} behind an answer that ends the connection"
        if answer.status >= 500 and answer.status != 501:
            yield f"{named} was answered {answer.status}"
        elif answer.status >= 400 and one.row.fate is Fate.MUST and not _after_odd(sent, turn):
            yield f"{named}, which is right, was answered {answer.status}"
        elif answer.status < 300:
            yield from _success(named, one, asked, answer)
        ended = ended or answer.last


def _after_odd(sent: Sequence[Sent], turn: int) -> bool:
    return any(one.row.fate is not Fate.MUST or one.row.ends for one in sent[:turn])


def _success(named: str, one: Sent, asked: Sequence[Asked], answer: Answer) -> Iterator[str]:
    if one.row.fate is Fate.NEVER and one.method != "OPTIONS":
        yield f"{named} was answered {answer.status}"
        return
    mine = [each for each in asked if _turn_of([one], each) == 0]
    if one.method in {"PUT", "DELETE"} and not any(each.is_whole for each in mine):
        yield f"{named} was answered {answer.status}, and the origin did not get it"
    tag = answer.fields.get(b"etag", b"").decode("latin-1")
    if one.method == "PUT" and tag != tag_of(one.body):
        yield f"{named} got the answer of another request: ETag {tag}"
    if one.method == "GET" and (truth := content(one.target)) is not None:
        span = _SPAN.search(one.wire)
        meant = truth if span is None else truth[int(span[1]) : int(span[2]) + 1]
        if answer.body != meant:
            yield f"{named} got wrong bytes: {(answer.body or b'')[:100]!r}"


def _end(sent: Sequence[Sent], whole: Sequence[Answer], heard: Heard) -> Iterator[str]:
    if len(whole) == len(sent):
        return
    said_so = bool(whole) and whole[-1].last
    first_odd = next((turn for turn in range(len(sent)) if _after_odd(sent, turn)), len(sent))
    missing = sent[len(whole)]
    named = f"request {len(whole)} ({missing.row.name})"
    if len(whole) < first_odd and missing.row.fate is Fate.MUST:
        yield f"{named}, which is right, {MISSING}: the connection is {heard.received.ending}"
    elif (
        heard.received.ending is Ending.OPEN
        and not said_so
        and all(one.row.prompt for one in sent[: len(whole) + 1])
    ):
        yield f"{named} {MISSING}: {_LATE}"
    if heard.asked_to_end and heard.ending is Ending.OPEN:
        yield f"{named} {MISSING}: {_LATE}, though the client has closed its side"
