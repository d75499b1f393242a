"""The dashboard: its document, and its content security policy.

tests/e2e/test_page.py shows the dashboard in a browser.
"""

import base64
import hashlib
import re
from importlib.resources import files


async def test_the_page_loads_nothing_runs_only_its_own_scripts_and_writes_text_only(client):
    answer = await client.get("/")
    page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    assert answer.content_type == "text/html"
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in parts]
        assert directives[directive].split() == [f"'sha256-{one}'" for one in hashes]
    assert page.count("<script") == 4
    assert not re.findall(
        r"{{|\bsrc=|@import|<link (?!rel=\"icon\" href=\"data:,\">)| on\w+=\"| style=\"", page
    )
    ours = page.replace(files("shadeproxy.api.control").joinpath("page", "uplot.min.js").read_text(), "")
    assert not re.findall(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", ours)
    assert "localStorage" not in ours


async def test_the_page_is_served_without_the_token_and_says_nothing(client, guarded):
    answer = await guarded.get("/")
    assert answer.status == 200
    assert "9.9.9" not in await answer.text()
    # Where no token is set, a request under a foreign host name is refused: by DNS rebinding, a foreign web
    # page could send it.
    assert (await client.get("/", headers={"Host": "evil.example"})).status == 403
