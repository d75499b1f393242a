"""The dashboard of the control listener in a tab of a headless Chromium. Playwright reads, clicks and types
as a person does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .chromium import chromium

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
expect = sync_api.expect
LIMIT_S = 60
WIDE = {"width": 1100, "height": 1300}
# A script that collects each text that the element "state" shows, from the first one on.
_COLLECT = """
window.states = [];
addEventListener("DOMContentLoaded", () => {
  const node = document.querySelector("#state");
  if (!node) return;
  const note = () => states.push(node.innerText);
  note();
  new MutationObserver(note).observe(node, {childList: true, characterData: true, subtree: true});
});
"""


@contextmanager
def started() -> Iterator[Any]:
    """Run Chromium; skip the test if there is none."""
    expect.set_options(timeout=1_000 * LIMIT_S)
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    with (
        sync_api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium(), args=arguments) as browser,
    ):
        yield browser


@contextmanager
def opened(browser: Any, settings: dict[str, Any]) -> Iterator[Any]:
    """Open a tab that shares nothing with other tabs. At its end, fail if a script raised an error, if the
    browser complained, or if a request went to another address than 127.0.0.1. The browser complains, for
    example, when the page violates its content security policy.
    """
    wrong = []

    def note_message(message: Any) -> None:
        # Ignore failed requests. Tests make the proxy refuse or end, which is no fault of the page.
        if not message.text.startswith("Failed to load resource: "):
            wrong.append(message.text)

    def note_request(asked: Any) -> None:
        if not asked.url.startswith("http://127.0.0.1:"):
            wrong.append(asked.url)

    with browser.new_context(**{"viewport": WIDE} | settings) as context:
        context.on("console", note_message)
        context.on("weberror", lambda raised: wrong.append(str(raised.error)))
        context.on("request", note_request)
        context.add_init_script(_COLLECT)
        yield context.new_page()
    assert wrong == [], wrong


def expect_state(tab: Any, kind: str) -> None:
    expect(tab.locator("#state")).to_have_attribute("data-state", kind)


def expect_within(tab: Any, selector: str, text: str) -> None:
    """Wait until the element shows ``text``. A space in ``text`` matches any white space."""
    expect(tab.locator(selector)).to_contain_text(text, use_inner_text=True)


def go_live(tab: Any, url: str) -> None:
    tab.goto(url)
    expect_state(tab, "live")


def violations(tab: Any) -> list[tuple[str, list[str]]]:
    """Return the accessibility faults that axe-core finds, of any impact: the rule and the elements
    of each.
    """
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
