"""The source of a setting that wins over the others, and the error texts for wrong settings."""

import pickle
import tomllib
from pathlib import Path

import pytest

from shadeproxy.config import Settings
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ConfigError


def test_flags_over_environment_over_file_over_defaults(write, monkeypatch):
    path = write('[cache.ram]\ncapacity = "1 MiB"\npath = "/f"\n[cache]\npage_size = "64 KiB"\n')
    monkeypatch.setenv("SHADEPROXY__CACHE__RAM__CAPACITY", "2 MiB")
    monkeypatch.setenv("SHADEPROXY__CACHE__PAGE_SIZE", "128 KiB")
    settings = Settings.load(path, ["cache.ram.capacity=3 MiB"])
    assert settings.cache.ram.capacity == 3 * 1024**2
    assert settings.cache.page_size == 128 * 1024
    assert settings.cache.ram.path == Path("/f")
    assert settings.cache.disk.capacity == 8 * 1024**3
    assert settings.place(("cache", "ram", "capacity")) == "--set cache.ram.capacity"
    assert settings.place(("cache", "page_size")) == "environment variable SHADEPROXY__CACHE__PAGE_SIZE"
    assert settings.place(("cache", "ram", "path")) == str(path)
    assert not settings.place(("cache", "disk", "capacity"))


def test_defaults_ignore_the_environment(monkeypatch):
    monkeypatch.setenv("SHADEPROXY__POLICY__NAME", "lru")
    assert Settings().policy.name == "default"
    assert Settings.load().policy.name == "lru"


def test_overrides_may_be_text_or_toml():
    settings = Settings.load(
        None,
        [
            "origin.region=eu-1",
            'rules=[{bucket="a", cache=false}]',
            "telemetry.access_log=true",
            "origin.delay = 20 ms",
        ],
    )
    assert settings.origin.region == "eu-1"
    assert [(rule.bucket, rule.cache) for rule in settings.rules] == [("a", False)]
    assert settings.telemetry.access_log
    assert settings.origin.delay == 0.02


def test_a_speed_may_be_written_with_its_time():
    for text in ("3 MB", "3 MB/s", "3000000"):
        disk = f'[{{path="/d", capacity="1 GiB", read_speed="{text}"}}]'
        settings = Settings.load(None, [f"origin.bandwidth={text}", f"cache.disks={disk}"])
        assert (settings.origin.bandwidth, settings.cache.disks[0].read_speed) == (3_000_000, 3_000_000)


def test_lists_in_the_environment_are_json(monkeypatch):
    monkeypatch.setenv("SHADEPROXY__S3__DOMAINS", '["s3.local"]')
    monkeypatch.setenv("SHADEPROXY__AUTH__CLIENTS", '[{"access_key": "a", "secret_env": "A"}]')
    monkeypatch.setenv("SHADEPROXY__ORIGIN__CREDENTIALS", "anonymous")
    settings = Settings.load()
    assert settings.s3.domains == ("s3.local",)
    assert settings.auth.clients[0].access_key == "a"
    assert settings.origin.credentials.source == "anonymous"


def test_a_tilde_is_the_home_directory_in_each_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    settings = Settings.load(
        None,
        [
            "origin.kind=file",
            "origin.path=~/data",
            "origin.ca_file=~/ca.pem",
            's3.tls={cert="~/a", key="~/b"}',
            "telemetry.trace=~/reads.npz",
            "cluster.engine_ca_file=~/engine.pem",
            "cluster.peer_ca_file=~/peer.pem",
        ],
    )
    assert (settings.origin.path, settings.origin.ca_file) == ("/home/me/data", "/home/me/ca.pem")
    assert (settings.s3.tls.cert, settings.s3.tls.key) == ("/home/me/a", "/home/me/b")
    assert settings.telemetry.trace == "/home/me/reads.npz"
    assert settings.cluster.engine_ca_file == "/home/me/engine.pem"
    assert settings.cluster.peer_ca_file == "/home/me/peer.pem"


def test_directories_follow_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    settings = Settings.load(None, ["cache.ram.path=~/ram"])
    assert settings.cache.disk.path == Path("/somewhere/shadeproxy/disk")
    assert settings.state.path == Path("/somewhere/shadeproxy/state")
    assert settings.cache.ram.path == Path.home() / "ram"
    assert str(Settings().cache.ram.path).startswith("/dev/shm/shadeproxy-")


UNREADABLE = [
    ("[cache.ram]\ncapcity = 1", "{file}: cache.ram.capcity: unknown key; did you mean capacity?"),
    ("[cach]\nx = 1", "{file}: cach: unknown key; did you mean cache?"),
    ("[prefetch]\nzzz = 1", "{file}: prefetch.zzz: unknown key; known here: enabled, ahead, whole_objects"),
    ("[[rules]]\nbuket = 'a'", "{file}: rules[0].buket: unknown key; did you mean bucket?"),
    (
        '[cache.ram]\ncapacity = "lots"',
        '{file}: cache.ram.capacity = "lots": \'lots\' is not a size: write it as "8 GiB"',
    ),
    ("[cache.ram]\ncapacity = -1", "{file}: cache.ram.capacity = -1: a size is not negative"),
    ("[cache.ram]\ncapacity = true", '{file}: cache.ram.capacity = true: a size is written as "8 GiB"'),
    ("[cache.ram]\ncapacity = 0", "{file}: cache.ram.capacity = 0: the RAM tier cannot be switched off"),
    ('[cache]\npage_size = "5 KB"', '{file}: cache.page_size = "5 KB": a page is a multiple of 4 KiB'),
    (
        '[cache]\npage_size = "36 MiB"\ninflight = "1 GiB"',
        '{file}: cache.page_size = "36 MiB": a page is a multiple of 4 KiB, from 4 KiB to 32 MiB (it',
    ),
    (
        '[origin]\ndelay = "soon"',
        '{file}: origin.delay = "soon": \'soon\' is not a time: write it as "250 ms"',
    ),
    ("[origin]\ndelay = inf", "{file}: origin.delay = inf: a time is finite"),
    ("[origin]\ndelay = []", '{file}: origin.delay: a time is written as "250 ms"'),
    ('[origin]\nkind = "gcs"', '{file}: origin.kind = "gcs": write "s3" or "file"'),
    (
        '[origin]\nkind = "file"',
        '{file}: origin: kind = "file" needs path: the directory whose sub-directories',
    ),
    ('[origin]\npath = "/data"', '{file}: origin: path belongs to kind = "file"'),
    ('[origin]\nendpoint = "rgw:7480"', '{file}: origin.endpoint = "rgw:7480": write "http://host:port"'),
    (
        '[origin]\nendpoint = "http://h/b"',
        '{file}: origin.endpoint = "http://h/b": write "http://host:port" or',
    ),
    (
        '[origin]\nhttp_proxy = "h:3128"',
        '{file}: origin.http_proxy = "h:3128": write "http://host:3128", the',
    ),
    (
        '[origin]\nhttp_proxy = "https://h:3128"',
        '{file}: origin.http_proxy = "https://h:3128": write "http://host:3128", the',
    ),
    (
        '[origin]\nhttp_proxy = "http://h:x"',
        '{file}: origin.http_proxy = "http://h:x": write "http://host:3128"',
    ),
    ("[origin]\nmax_connections = 0", "{file}: origin.max_connections = 0: write 1 or more"),
    (
        '[origin]\nname = "caf\u00e9"',
        '{file}: origin.name = "caf\u00e9": write at most 256 characters of printable ASCII',
    ),
    ("[origin.retry]\nattempts = 99", "{file}: origin.retry.attempts = 99: write 20 or less"),
    ('[origin.retry]\nattempts = "x"', '{file}: origin.retry.attempts = "x": write a whole number'),
    ("[origin.retry]\nattempts = 1.5", "{file}: origin.retry.attempts = 1.5: write a whole number"),
    ("[origin]\nregion = 5", '{file}: origin.region = 5: write text in quotes, as in "text"'),
    ('[s3]\nlisten = "9000"', '{file}: s3.listen = "9000": write it as "host:port"'),
    ('[s3]\nlisten = "a:99999"', '{file}: s3.listen = "a:99999": write it as "host:port"'),
    ('[s3]\ndomains = "a"', '{file}: s3.domains = "a": write a list, as in ["a", "b"]'),
    ('rules = "a"', '{file}: rules = "a": write each as a table of its own: a line [[rules]], and below it'),
    ('[s3.tls]\ncert = "a"', "{file}: s3.tls: write both cert and key, or neither"),
    ("s3 = 3", "{file}: s3 = 3: is a table: write its keys below a line [s3]"),
    (
        '[policy]\nname = "lur"',
        "{file}: policy.name = \"lur\": no policy is called 'lur'; choose one of default, lru",
    ),
    (
        "[[rules]]\npin = true\ncache = false",
        "{file}: rules[0]: pin = true keeps what is cached, and cache = false caches nothing: leave one out",
    ),
    ('[telemetry]\naccess_log = "maybe"', '{file}: telemetry.access_log = "maybe": write true or false'),
    ("[cache.ram]\npath = 3", '{file}: cache.ram.path = 3: write text in quotes, as in "text"'),
    (
        '[cache]\ndisks = "a"',
        '{file}: cache.disks = "a": write each as a table of its own: a line [[cache.disks]]',
    ),
    ("[[cache.disks]]\ncapacity = 1", "{file}: cache.disks[0].path: is missing: write it"),
    (
        '[[cache.disks]]\npath = ""\ncapacity = 1',
        '{file}: cache.disks[0].path = "": a disk of [[cache.disks]] needs path: a directory on that disk',
    ),
    (
        '[[cache.disks]]\npath = "/a"\ncapacity = 0',
        "{file}: cache.disks[0].capacity = 0: a disk of [[cache.disks]] needs a capacity: write it",
    ),
    (
        '[cache]\ndisks = [{path = "/a", capacity = 1}, {path = "/a", capacity = 1}]',
        "cache.disks[0].path and cache.disks[1].path are both /a: give each its own directory",
    ),
    ("[s3", "{file}: is not valid TOML: "),
    (
        '[cache.ram]\npath = "/a"\n[state]\npath = "/a"',
        "cache.ram.path and state.path are both /a: give each its own",
    ),
]


@pytest.mark.parametrize(("text", "expected"), UNREADABLE)
def test_a_bad_file_is_explained(refused, text, expected):
    assert refused(text).startswith(expected)


def test_every_error_is_told_at_once(refused):
    assert len(refused("[s3]\nworkers = 0\nlisten = 5\n[nope]\na = 1").splitlines()) == 3


def test_bad_environment_names_the_variable(monkeypatch):
    def text(name, value):
        monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError) as caught:
            Settings.load()
        monkeypatch.delenv(name)
        return str(caught.value)

    variable = "environment variable SHADEPROXY__"
    assert (
        text("SHADEPROXY__CACH__RAM", "1") == f"{variable}CACH__RAM: cach: unknown key; did you mean cache?"
    )
    assert text("SHADEPROXY__CACHE__RAMM__X", "1").startswith(
        f"{variable}CACHE__RAMM__X: cache.ramm: unknown key"
    )
    assert text("SHADEPROXY__BOGUS", "1").startswith(f"{variable}BOGUS: bogus: unknown key; known here: s3,")
    assert text("SHADEPROXY__CACHE__RAM", "1") == (
        f"{variable}CACHE__RAM: cache.ram = 1: is a table:"
        " set its keys, as in SHADEPROXY__CACHE__RAM__KEY=VALUE"
    )
    wanted = 'write a list of tables in JSON, as in [{"prefix": "data/"}]'
    toml = '[{prefix = "data/"}]'
    assert text("SHADEPROXY__RULES", "x") == f'{variable}RULES: rules = "x": {wanted}'
    assert text("SHADEPROXY__RULES", toml).endswith(f": {wanted}")
    monkeypatch.setenv("SHADEPROXY__RULES", '[{"prefix": "data/"}]')
    assert Settings.load().rules[0].prefix == "data/"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cache.ram.capacity", "--set cache.ram.capacity: write it as --set section.key=value"),
        ("s3=3", "--set s3: s3 = 3: is a table: set its keys, as in --set s3.KEY=VALUE"),
        ("=3", "--set : write it as --set section.key=value"),
        ("cache..x=3", "--set cache..x: write it as --set section.key=value"),
        ("policy.nmae=lru", "--set policy.nmae: policy.nmae: unknown key; did you mean name?"),
        (
            'rules=[{"prefix": "data/"}]',
            '--set rules: rules = "[{"prefix": "data/"}]": write a list of tables in TOML, as in',
        ),
        ("auth.clients=x", "--set auth.clients: auth.clients: write a list of tables in TOML, as in"),
        ("policy.name=x", "--set policy.name: policy.name = \"x\": no policy is called 'x'"),
    ],
)
def test_bad_overrides_are_explained(refused, override, expected):
    assert refused("", override).startswith(expected)


ROOM = 'inflight = "5 MiB" must hold at least two pages (page_size = "4 MiB"): write "8 MiB" or more'


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("", ["cache.inflight=5 MiB"], f"--set cache.inflight: cache: {ROOM}"),
        ("", ["cache.ram.capacity=1 GiB", "cache.inflight=5 MiB"], f"--set cache.inflight: cache: {ROOM}"),
        ('[cache.ram]\ncapacity = "1 GiB"', ["cache.inflight=5 MiB"], f"--set cache.inflight: cache: {ROOM}"),
        ('[cache]\ninflight = "5 MiB"', ["cache.group=g"], f"{{file}}: cache: {ROOM}"),
        (
            '[cache]\ngroup = "g"\ninflight = "5 MiB"',
            ["cache.page_size=4 MiB"],
            f"{{file}} and --set cache.page_size: cache: {ROOM}",
        ),
        (
            "[cluster]\npages = 'local'",
            ["cluster.name=c", "cluster.leave_after=1 s"],
            "--set cluster.leave_after: cluster: leave_after must be at least two leases",
        ),
        ("", ["s3.tls.cert=c"], "--set s3.tls.cert: s3.tls: write both cert and key, or neither"),
        (
            "[origin]\ncredentials.profile = 'p'",
            ["origin.credentials.source=anonymous", "origin.region=r"],
            "{file} and --set origin.credentials.source: origin.credentials: write only one of profile",
        ),
        (
            "[origin]\nregion = 'r'",
            ["origin.credentials.profile=p", "origin.credentials.secret_key=s"],
            "--set origin.credentials.secret_key: origin.credentials: secret_key: a secret does not stand",
        ),
        (
            "[telemetry]\naccess_log = true",
            ["auth.verdict_ttl=1 s", 'auth.clients=[{access_key = "a"}]'],
            "--set auth.clients: auth.clients[0]: write one of secret_env and secret_file",
        ),
    ],
)
def test_the_places_of_the_keys_that_do_not_go_together_are_named(refused, text, overrides, expected):
    assert refused(text, *overrides).startswith(expected)


def test_the_variable_of_the_key_that_was_wrong_is_named(refused, monkeypatch):
    monkeypatch.setenv("SHADEPROXY__CACHE__GROUP", "g")
    monkeypatch.setenv("SHADEPROXY__CACHE__INFLIGHT", "5 MiB")
    assert refused() == f"environment variable SHADEPROXY__CACHE__INFLIGHT: cache: {ROOM}"


def test_override_below_a_value_is_explained(refused):
    assert refused("", "policy.name=lru", "policy.name.x=1") == (
        "--set policy.name.x: name has a value already; it is not a section"
    )


def test_unreadable_files_are_explained(tmp_path):
    def text(path):
        with pytest.raises(ConfigError) as caught:
            Settings.load(path)
        return str(caught.value)

    missing = tmp_path / "none.toml"
    assert text(missing) == f"{missing}: there is no such file; name an existing one with --config"
    assert text(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert text(binary) == f"{binary}: is not UTF-8 text"


def test_written_settings_read_back_the_same(write):
    own = '{access_key="a", secret_env="A", upstream={access_key="u", secret_file="/s"}}'
    shared = '{access_key="b", secret_file="/b", allow=["read"], prefixes=["p/"]}'
    settings = Settings.load(
        None,
        [
            f"auth.clients=[{own}, {shared}]",
            'rules=[{bucket="x*", freshness="immutable", ttl="90 s"}]',
            "origin.delay=1500 ms",
            "cache.ram.capacity=1234567",
            'origin.region=quo"te\\',
            "s3.listen=[::1]:9",
        ],
    )
    text = write_toml(settings.masked(), settings.place)
    assert Settings.load(write(text)).model_dump() == settings.model_dump()
    assert tomllib.loads(text)["cache"]["ram"]["capacity"] == "1234567 B"
    assert 'delay = "1.5 s"  # --set origin.delay' in text


@pytest.mark.parametrize(
    "text",
    [
        'tls = {cert = "a", key = "b"}',
        "[telemetry]\naccess_log = true",
        '[telemetry]\nlog_level = "debug"',
        '[[auth.clients]]\naccess_key="a"\nsecret_file="/a"\nupstream={access_key="u", secret_file="/s"}',
    ],
)
def test_several_workers_go_with_everything(write, text):
    assert Settings.load(write(f"[s3]\nworkers = 2\n{text}")).s3.processes == 2


@pytest.mark.parametrize(
    ("cores", "machine", "number"),
    [
        (1, "x86_64", 1),
        (3, "x86_64", 1),
        (4, "x86_64", 2),
        (9, "x86_64", 4),
        (96, "x86_64", 8),
        (8, "arm64", 1),
    ],
)
def test_workers_are_chosen_by_the_cores(write, monkeypatch, cores, machine, number):
    monkeypatch.setattr("shadeproxy.config.sections.available_cores", lambda: cores)
    monkeypatch.setattr("platform.machine", lambda: machine)
    path = write('[s3]\nworkers = "auto"')
    settings = Settings.load(path)
    assert (settings.s3.workers, settings.s3.processes) == ("auto", number)
    shown = write_toml(settings.masked(), settings.note)
    assert f'workers = "auto"  # here {number}; {path}' in shown
    # The number was chosen at the start. It stays, even if the limits on cores change.
    monkeypatch.setattr("shadeproxy.config.sections.available_cores", lambda: 64)
    assert settings.model_copy(update={"rules": ()}).s3.processes == number
    assert pickle.loads(pickle.dumps(settings)).s3.processes == number


@pytest.mark.parametrize("value", ["0", "65", '"many"', "1.5", "true", "[2]"])
def test_a_number_of_workers_that_is_none_is_refused(refused, value):
    told = refused(f"[s3]\nworkers = {value}")
    assert told.endswith('write a whole number from 1 to 64, or "auto"'), told


def test_the_number_of_workers_comes_from_the_environment_too(monkeypatch):
    for written, number in (("2", 2), ("auto", 1)):
        monkeypatch.setenv("SHADEPROXY__S3__WORKERS", written)
        monkeypatch.setattr("shadeproxy.config.sections.available_cores", lambda: 2)
        assert Settings.load().s3.processes == number


def test_several_workers_need_a_machine_that_keeps_the_order_of_stores(refused, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "s3.workers = 2 does not go with this machine, aarch64: only x86-64 shows stores" in refused(
        "[s3]\nworkers = 2"
    )


def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b'\xef\xbb\xbf[cache]\r\npage_size = "8 MiB"\r\n')
    assert Settings.load(path, []).cache.page_size == 8 << 20
