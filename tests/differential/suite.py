"""The differential suite, for any origin. The tests of each origin call these functions with their own bounds
on examples.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, quote_from_bytes

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .compare import comparable, expected_of_read
from .corpus import Stored, fill, store
from .operations import SCRIPT, Play, Scene
from .reads import pinned, reads
from .sides import Sides
from .wire import Request

_SAFE = "/-_.~"


def _bounded(examples: int) -> settings:
    # Each run has the same examples, so a run that failed fails again.
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def reads_are_the_origins(sides: Sides, *, examples: int) -> None:
    """Compare GetObject and HeadObject of objects that exist, in every form."""
    objects = fill(sides.origin, sides.bucket)

    def compare(request: Request, stored: Stored) -> None:
        expected = expected_of_read(sides.origin, request, stored)
        whole = Request("GET", f"/{sides.bucket}/{stored.raw_key}")
        sides.compare(request, expected, warm_by=whole)

    @_bounded(examples)
    @given(reads(sides.bucket, objects))
    def compare_drawn(drawn: tuple[Request, Stored]) -> None:
        compare(*drawn)

    for request, stored in pinned(sides.bucket, objects):
        compare(request, stored)
    compare_drawn()


_CHARACTERS = st.one_of(
    st.sampled_from("/ab./+% -_~&=?#:;,@!$'()*\"<>[]{}|\\^`"),
    st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cc", "Cn")),
)


@st.composite
def spelled_keys(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a key in its plainest spelling on the wire, and in another spelling of the same key."""
    parts = [draw(st.text(_CHARACTERS, min_size=1, max_size=12))]
    if draw(st.booleans()):
        parts.append(draw(st.sampled_from(("/", "//x", "/./y", "/../z", "/", "+", "%2F"))))
    key = "k" + "".join(parts)
    escape_all = draw(st.booleans())
    lower = draw(st.booleans())
    spelled = "".join(
        char if char in _SAFE and not (escape_all and char != "/") else _escaped(char, lower=lower)
        for char in key
    )
    return quote(key, safe=_SAFE), spelled


def _escaped(char: str, *, lower: bool) -> str:
    if char.isascii() and char.isalnum() and not lower:
        return char
    text = "".join(f"%{byte:02X}" for byte in char.encode())
    return text.lower() if lower else text


def keys_are_the_origins(sides: Sides, *, examples: int) -> None:
    """Compare reads and listings of any key in any spelling, and reads of a missing key."""

    @_bounded(examples)
    @given(spelled_keys())
    def compare(drawn: tuple[str, str]) -> None:
        plain, spelled = drawn
        stored = store(sides.origin, sides.bucket, plain, plain.encode())
        for raw_key in (plain, spelled):
            whole = Request("GET", f"/{sides.bucket}/{raw_key}")
            sides.compare(whole, expected_of_read(sides.origin, whole, stored), warm_by=whole)
        missing = Request("GET", f"/{sides.bucket}/{plain}-")
        sides.compare(missing, comparable(sides.origin.send(missing)), warm_by=missing)
        prefix = quote_from_bytes(plain.encode(), safe="")
        listing = Request("GET", f"/{sides.bucket}?list-type=2&encoding-type=url&prefix={prefix}")
        sides.compare(listing, comparable(sides.origin.send(listing)), warm_by=listing)

    compare()


def operations_are_the_origins(sides: Sides) -> None:
    """Compare every operation that is forwarded, and the errors of each."""
    play_scenes(sides, SCRIPT)


def play_scenes(sides: Sides, scenes: Iterable[Scene]) -> None:
    """Play each scene at the origin and through the proxies, and compare the transcripts."""
    plays = [Play(sides.origin, f"{sides.bucket}-0", is_origin=True)]
    for number, proxy in enumerate(sides.proxies, 1):
        plays.append(Play(proxy.peer, f"{sides.bucket}-{number}", is_origin=False))
    expected, *others = plays
    # Play all sides at the same time. In a cluster, each change of a bucket waits until all proxies have
    # agreed.
    with ThreadPoolExecutor(len(plays)) as pool:
        for scene in scenes:
            list(pool.map(scene, plays))
            for play in others:
                assert len(play.transcript) == len(expected.transcript), scene.__name__
                for wanted, got in zip(expected.transcript, play.transcript, strict=True):
                    assert got == wanted, f"{play.bucket}: {got}\n  and at the origin: {wanted}"
