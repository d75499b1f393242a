"""Waits for the end of a purge. A purge that takes longer than a second goes on as a long operation."""

import time
from collections.abc import Callable

import msgspec

_INTERVAL_S = 0.1


def end_of_purge(status: int, answer: bytes, get: Callable[[str], bytes]) -> int:
    """Wait for the end of a purge. Return 200 if all pages were dropped, 0 if the proxy no longer answers,
    and otherwise the status of the failure. ``status``, ``answer``: the answer to the call that began the
    purge. ``get`` returns the body of the answer to a GET of a path, b"" if there is no answer.
    """
    while status == 202:
        if not answer:
            return 0
        operation = msgspec.json.decode(answer)
        if "state" not in operation:
            return 0  # The proxy was restarted: this process did not begin the purge.
        if operation["state"] != "running":
            return 200 if operation["state"] == "done" else 503
        time.sleep(_INTERVAL_S)
        answer = get(f"/v1/operations/{operation['id']}")
    return status
