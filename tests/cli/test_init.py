"""``shadeproxy init`` writes a configuration that works. It writes one only if the origin has answered."""

from types import SimpleNamespace

import pytest

from shadeproxy.config import Settings
from shadeproxy.core.errors import CredentialsUnresolved, NoCredentials, OriginAnswer, OriginUnavailable
from tests.support.cli_origin import FakeOrigin


@pytest.fixture
def init(shade, composition, tmp_path, monkeypatch):
    """Return a function ``init(ARGUMENTS)`` that runs ``shadeproxy init`` in an empty directory.
    ``init.setup.probes`` has the results of the origin's probes in turn: an error, or None for success.
    """
    monkeypatch.chdir(tmp_path)
    setup = SimpleNamespace(probes=[None])

    def build(_settings):
        return SimpleNamespace(origin=FakeOrigin(probe=setup.probes.pop(0)))

    composition.build_origin = build

    def run(*arguments):
        return shade("init", *arguments)

    run.setup = setup
    return run


def test_it_writes_a_configuration_that_can_be_read(init, tmp_path):
    result = init("https://store.example.org", "--region", "eu-1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "2 buckets at http://origin\nwrote shadeproxy.toml; now: shadeproxy serve --config shadeproxy.toml\n"
    )
    settings = Settings.load(tmp_path / "shadeproxy.toml")
    assert (settings.origin.endpoint, settings.origin.region) == ("https://store.example.org", "eu-1")
    assert settings.origin.credentials == Settings.load(None, []).origin.credentials
    assert 0 < settings.cache.ram.capacity < 1 << 45
    assert [rule.freshness for rule in settings.rules] == ["ttl"]
    assert [one.name for one in tmp_path.iterdir() if "toml" in one.name] == ["shadeproxy.toml"]


def test_a_directory_is_an_origin_of_buckets(init, tmp_path):
    (tmp_path / 'da"ta').mkdir()
    assert init('da"ta', "--out", "mine.toml").exit_code == 0
    settings = Settings.load(tmp_path / "mine.toml")
    assert (settings.origin.kind, settings.origin.path) == ("file", str(tmp_path / 'da"ta'))


def test_a_store_that_takes_requests_without_keys_is_asked_without(init, tmp_path):
    init.setup.probes = [NoCredentials("none were found"), None]
    result = init("http://store")
    assert result.exit_code == 0
    assert "note: no keys were found" in result.stderr
    assert 'credentials = "anonymous"' in (tmp_path / "shadeproxy.toml").read_text()


@pytest.mark.parametrize(
    ("probes", "text"),
    [
        (
            [NoCredentials("none were found"), OriginAnswer(403, "AccessDenied", "no")],
            f"error: http://store asks for keys: {NoCredentials.hint}\n",
        ),
        (
            [OriginUnavailable("the origin http://store cannot be reached: refused")],
            "cannot be reached: refused",
        ),
        (
            [OriginAnswer(403, "SignatureDoesNotMatch")],
            "error: http://store answers 403 SignatureDoesNotMatch; correct AWS_ACCESS_KEY_ID and",
        ),
        ([OriginAnswer(403, "AccessDenied")], "403 AccessDenied; look at the keys' rights, and --region\n"),
        (
            [CredentialsUnresolved("the config profile (nope) could not be found")],
            "error: the config profile (nope) could not be found; correct the profile, file, process or role",
        ),
    ],
)
def test_nothing_is_written_if_the_origin_does_not_answer(init, tmp_path, probes, text):
    init.setup.probes = probes
    result = init("http://store")
    assert result.exit_code == 1
    assert text in result.stderr
    assert not (tmp_path / "shadeproxy.toml").exists()


def test_a_file_that_exists_stays_unless_forced(init, tmp_path):
    (tmp_path / "shadeproxy.toml").write_text("mine")
    result = init("http://store")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: shadeproxy.toml exists; write --force to replace it, or --out for another file\n"
    )
    assert (tmp_path / "shadeproxy.toml").read_text() == "mine"
    assert init("http://store", "--force").exit_code == 0
    assert "http://store" in (tmp_path / "shadeproxy.toml").read_text()


def test_an_empty_name_is_not_the_working_directory(init, tmp_path):
    """A shell passes it if a variable is not set: ``shadeproxy init "$ENDPOINT"``."""
    result = init("")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: '' is neither a URL nor a directory")
    assert not (tmp_path / "shadeproxy.toml").exists()


def test_a_name_that_is_neither_url_nor_directory(init):
    result = init("store:9000")
    assert result.exit_code == 2
    assert (
        "error: store:9000 is neither a URL nor a directory: write https://host for an object"
        in result.stderr
    )


def test_a_url_with_a_path_is_explained_without_an_option_that_was_not_written(init):
    result = init("http://store/bucket")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        'error: origin.endpoint = "http://store/bucket": write "http://host:port" or'
    )


def test_a_place_that_cannot_be_written(init, tmp_path):
    result = init("http://store", "--out", str(tmp_path / "none" / "x.toml"))
    assert result.exit_code == 2
    assert "x.toml cannot be written: No such file or directory; name another with --out" in result.stderr
