"""Runs one library in a process of its own: ``python -m tests.clients.libraries.child MODULE WHERE``. Its
orders are lines of JSON.

So each library has its own environment, warnings and threads. Its crash is recorded like any other result.
"""

import importlib
import json
import os
import sys
import traceback
from types import SimpleNamespace
from typing import Any


def main() -> None:
    # Text that a library prints must not get between the answers, so move it to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    module, where = sys.argv[1], json.loads(sys.argv[2])
    try:
        operations = importlib.import_module(f"tests.clients.libraries.{module}").Operations(
            SimpleNamespace(**where)
        )
    except ModuleNotFoundError as error:
        say(absent=str(error))
        return
    offers = {
        name: getattr(operations, name).__doc__ or ""
        for name in dir(operations)
        if not name.startswith("_") and callable(getattr(operations, name))
    }
    say(answer={"version": operations.version, "offers": offers})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say(answer=getattr(operations, asked["operation"])(**asked["arguments"]))
        except BaseException as error:  # noqa: BLE001 -- whatever a library raises is its outcome
            # For an assertion without a text, report the line of code.
            where = "" if str(error) else traceback.extract_tb(error.__traceback__)[-1].line
            say(error=f"{type(error).__name__}: {error}{where}")


if __name__ == "__main__":
    main()
