"""Makes the page docs/reliability/fuzz.md."""

from datetime import UTC, datetime

from shadeproxy_bench.reliability.fuzz.run import Found
from shadeproxy_bench.reliability.kit.verdict import counts_table

_WHAT = (
    "They went to four listeners: the fast lane, tasks alone, one that refuses unsigned requests, and a"
    " proxy before that one. Two in five connections carry only requests as clients send them, in every form"
    " of S3 and of signing; in the others requests are damaged in their meaning (method, target, fields,"
    " framing, body) or in their bytes. Many are cut into pieces, sent several on one connection, or given"
    " up."
)
_FAILS = (
    "The run fails with: a 500, 502 or 504; a line of error or a traceback in the log; bytes that are no"
    " HTTP answer; an error document that is no XML; a body that is not that of its ETag; a short body that"
    " looks whole; a connection that neither goes on nor ends; an ordinary write and read that no longer"
    " work; at the end anything under way in the engine, a task or a descriptor more than before."
)


def markdown(found: Found, machine: str) -> str:
    """Return the Markdown of the page about the run whose result is ``found``."""
    verdict = "**Passed**" if not found.failures else f"**Failed**: {len(found.failures)} failures"
    sent = f"{found.requests:,} requests on {found.connections:,} connections"
    return "\n".join(
        (
            "# Fuzz",
            "",
            f"    make fuzz REQUESTS={found.wanted} SEED={found.seed}",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, {machine}. This page is written by the run.",
            "",
            f"{verdict}: {sent}; the fast lane answered {found.known:,} from memory. {_WHAT}",
            "",
            _FAILS,
            "",
            *counts_table("answer", "count", found.answers),
            "Connections without an answer are those whose request never ends: the client sends no more.",
            "",
            "Operations that the listeners saw (the proxy's own requests to its origin included):",
            "",
            *counts_table("operation", "count", found.operations),
        )
    )
