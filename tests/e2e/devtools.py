"""A page in a headless Chromium, driven by its DevTools protocol: it is seen, clicked and typed into as by a
person.
"""

import asyncio
import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from .chromium import chromium

_LIMIT_S = 60.0
_MOST_MESSAGE_BYTES = 64 * 1024 * 1024


class Tab:
    """One tab. ``problems``: errors that the page reported, of its scripts and of its policy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._loop = loop
        self._socket = socket
        self._number = 0
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._send(method, parameters), _LIMIT_S))

    def go(self, url: str) -> None:
        """Show ``url``, and return when it is loaded."""
        self.send("Page.navigate", url=url)
        self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element as it is shown; "" if there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, script: str) -> Any:
        """Return the value of an expression once it is true."""
        end = time.monotonic() + _LIMIT_S
        while not (found := self.run(script)):
            assert time.monotonic() < end, (script, self.run("document.body.innerText"), self.problems)
            time.sleep(0.1)
        return found

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **text)  # fmt: skip

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def show(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and the colours that the person prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """Write a picture of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async for message in self._socket:
            told = json.loads(message.data)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self._note(told)
        raise AssertionError("Chromium closed the connection")

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] != "network":
            self.problems.append(event["params"]["entry"]["text"])


@contextmanager
def opened(directory: Path) -> Iterator[Tab]:
    """Run Chromium with one tab; skip the test if there is no Chromium."""
    program = chromium()
    directory.mkdir(parents=True, exist_ok=True)
    port_file = directory / "profile" / "DevToolsActivePort"
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-background-networking", "--disable-component-update", "--no-first-run",
                "--hide-scrollbars", f"--user-data-dir={directory / 'profile'}", "--remote-debugging-port=0",
                "about:blank",
            ],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        loop = asyncio.new_event_loop()
        try:
            end = time.monotonic() + _LIMIT_S
            while not (port_file.exists() and port_file.read_text().count("\n")):
                assert time.monotonic() < end, (directory / "chromium.log").read_text()
                time.sleep(0.05)
            port = int(port_file.read_text().split()[0])
            session, socket = loop.run_until_complete(_connect(port))
            try:
                yield Tab(loop, socket)
            finally:
                loop.run_until_complete(session.close())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            loop.close()


async def _connect(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    try:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = await answer.json(content_type=None)
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        return session, await session.ws_connect(url, max_msg_size=_MOST_MESSAGE_BYTES)
    except BaseException:
        await session.close()
        raise
