"""Credentials from the environment, from profiles and from a credential process. They are shared, their use
is bounded, and they are never shown.
"""

import asyncio
import json
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest

from shadeproxy.core.errors import OriginAnswer, OriginUnavailable
from shadeproxy.core.sigv4 import Credentials
from shadeproxy.origin.credentials import ChainCredentials, StaticCredentials
from tests.support.clock import ManualClock


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


async def test_from_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN")
    assert await ChainCredentials().credentials() == Credentials("KEY", "SECRET", "TOKEN")


async def test_from_a_profile(isolated):
    (isolated / "credentials").write_text(
        "[default]\naws_access_key_id=D\naws_secret_access_key=d\n"
        "[lab]\naws_access_key_id=L\naws_secret_access_key=l\n"
    )
    assert await ChainCredentials().credentials() == Credentials("D", "d")
    assert await ChainCredentials(profile="lab").credentials() == Credentials("L", "l")
    with pytest.raises(OriginUnavailable, match="missing"):
        await ChainCredentials(profile="missing").credentials()


async def test_none_found_says_what_to_set():
    with pytest.raises(
        OriginAnswer, match=r"set AWS_ACCESS_KEY_ID .* or set origin.credentials = \"anonymous\""
    ):
        await ChainCredentials().credentials()


@pytest.fixture
def process(isolated):
    """Configure a credential process that counts its runs. ``process(lifetime)`` sets its output."""
    script, runs, output = isolated / "process.py", isolated / "runs", isolated / "output"
    script.write_text(
        f"open({str(runs)!r}, 'a').write('x')\n"
        f"n = len(open({str(runs)!r}).read())\n"
        f"text = open({str(output)!r}).read()\n"
        "assert text, 'no answer'\n"
        "print(text.replace('KEY', f'KEY{n}'))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (isolated / "config").write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")

    def answer(lifetime):
        expiry = (datetime.now(UTC) + lifetime).isoformat()
        output.write_text(
            json.dumps({"Version": 1, "AccessKeyId": "KEY", "SecretAccessKey": "s", "Expiration": expiry})
        )

    answer.silence = lambda: output.write_text("")
    answer.runs = lambda: len(runs.read_text())
    return answer


async def test_long_lived_credentials_are_resolved_once_for_all(process):
    process(timedelta(hours=6))
    provider = ChainCredentials()
    found = await asyncio.gather(*(provider.credentials() for _ in range(10)))
    assert {credentials.access_key for credentials in found} == {"KEY1"}
    assert process.runs() == 1


async def test_credentials_near_their_end_are_refreshed(process):
    process(timedelta(minutes=5))
    clock = ManualClock()
    provider = ChainCredentials(clock=clock)
    first = await provider.credentials()
    assert await provider.credentials() == first, "not asked again at once"
    clock.advance(31)
    second = await provider.credentials()
    # botocore calls the process twice at first, so KEY1 is never used.
    assert (first.access_key, second.access_key) == ("KEY2", "KEY3")


async def test_a_failed_refresh_keeps_what_still_holds(process):
    process(timedelta(minutes=12))
    clock = ManualClock()
    provider = ChainCredentials(clock=clock)
    first, runs = await provider.credentials(), process.runs()
    process.silence()
    clock.advance(31)
    assert await provider.credentials() == first
    assert process.runs() == runs + 1


async def test_a_failing_process_is_named_and_not_quoted(process):
    process.silence()
    with pytest.raises(OriginUnavailable, match="provider 'custom-process' failed") as raised:
        await ChainCredentials().credentials()
    assert "no answer" not in str(raised.value)


async def test_a_waiter_that_gives_up_does_not_cancel_the_others(process):
    process(timedelta(hours=6))
    provider = ChainCredentials()
    first, second = (asyncio.create_task(provider.credentials()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).access_key == "KEY1"


def test_secrets_show_in_no_repr():
    assert "hidden" not in repr(Credentials("K", "hidden", "hidden"))
    assert "hidden" not in repr(StaticCredentials(Credentials("K", "hidden")))
