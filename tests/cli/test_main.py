"""The commands serve, config, demo and version: how they start, and the one line that they print if they
cannot.
"""

import gc
import importlib.util
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError, NotSupported, ShadeProxyError


def test_version(shade):
    assert shade("version").stdout == shade("--version").stdout == "shadeproxy 0.1.0\n"


def test_another_system_is_told_in_one_line_that_the_proxy_needs_linux():
    hidden = "import sys; sys.platform = 'darwin'; sys.modules['fcntl'] = None"
    code = f"{hidden}; from shadeproxy.__main__ import run; run()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: the proxy runs on Linux only, and this is darwin; run it on a Linux host or in a container."
        " The SDK, shadeproxy-sdk, works here\n"
    )


def test_help_lists_the_commands_that_exist(shade):
    result = shade("--help")
    for command in ("serve", "config", "check", "doctor", "stats", "purge", "demo", "version"):
        assert command in result.stdout


def test_help_says_how_to_begin_and_which_proxy_a_command_is_for(shade):
    def words(*arguments):
        return " ".join(shade(*arguments, "--help").stdout.replace("│", " ").split())

    assert "`shadeproxy check` tries a configuration, `shadeproxy serve` runs it" in words()
    assert "below a prefix from a running proxy, or with --all everything of a stopped one" in words("purge")
    assert "Changes nothing, also beside a running proxy" in words("check")
    assert "or find out why none answers" in words("doctor")


def test_config_prints_the_effective_settings_and_their_places(shade, tmp_path, monkeypatch):
    path = tmp_path / "c.toml"
    path.write_text('[policy]\nname = "lru"\n')
    monkeypatch.setenv("SHADEPROXY__ORIGIN__REGION", "eu-1")
    result = shade(
        "config", "--config", path, "--set", "cache.ram.capacity=2 GiB", "--set", "control.token=env:T"
    )
    assert result.exit_code == 0
    assert f'name = "lru"  # {path}\n' in result.stdout
    assert 'region = "eu-1"  # environment variable SHADEPROXY__ORIGIN__REGION\n' in result.stdout
    assert 'capacity = "2 GiB"  # --set cache.ram.capacity\n' in result.stdout
    assert tomllib.loads(result.stdout)["control"]["token"] == "env:T"


def test_the_configuration_may_be_named_by_the_environment(shade, tmp_path, monkeypatch):
    path = tmp_path / "c.toml"
    path.write_text('[policy]\nname = "fifo"\n')
    monkeypatch.setenv("SHADEPROXY_CONFIG", str(path))
    assert 'name = "fifo"' in shade("config").stdout


def test_serve_hands_over_the_settings_and_how_to_read_them_again(shade, composition, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("")
    served = []
    composition.serve = lambda settings, load: served.extend((settings, load, gc.isenabled()))
    assert shade("serve", "--config", file, "--set", "policy.name=lru").exit_code == 0
    assert served[2]
    assert isinstance(served[0], Settings)
    assert served[0].policy.name == "lru"
    file.write_text('[policy]\nname = "fifo"\n[telemetry]\naccess_log = true\n')
    again = served[1]()
    assert (again.policy.name, again.telemetry.access_log) == ("lru", True)


@pytest.mark.parametrize("command", ["serve", "config", "check", "doctor", "stats", "purge"])
def test_a_bad_configuration_is_one_line_and_status_2(shade, composition, command):
    arguments = [command, *(["s3://b/"] if command == "purge" else []), "--set", "cache.ram.capcity=1"]
    result = shade(*arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: --set cache.ram.capcity: cache.ram.capcity: unknown key; did you mean capacity?\n"
    )


def test_serving_the_world_without_authentication_is_refused(shade, composition):
    result = shade("serve", "--set", "s3.listen=0.0.0.0:9000")
    assert result.exit_code == 2
    assert "can be reached from other machines" in result.stderr
    assert "set auth.anonymous = false and add [[auth.clients]], or listen on 127.0.0.1" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("cache.ram.path: locked"), 2, "error: cache.ram.path: locked\n"),
        (ShadeProxyError("s3.listen: port taken"), 1, "error: s3.listen: port taken\n"),
        (NotSupported("cannot", hint="do this"), 1, "error: cannot; do this\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_serve_raises_becomes_one_line(shade, composition, error, status, text):
    def serve(_settings, _load):
        raise error

    composition.serve = serve
    result = shade("serve")
    assert (result.exit_code, result.stderr) == (status, text)


def test_a_bug_keeps_its_traceback(shade, composition):
    def serve(_settings, _load):
        raise KeyError("bug")

    composition.serve = serve
    with pytest.raises(KeyError):
        shade("serve")


def test_demo_hands_its_options_over(shade, monkeypatch, tmp_path):
    ran = []
    module = ModuleType("shadeproxy.demo.main")
    module.run_demo = lambda **options: ran.append(options)
    monkeypatch.setitem(sys.modules, "shadeproxy.demo.main", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert shade("demo", "--report-dir", tmp_path, "--endpoint", "http://h", "--bucket", "b").exit_code == 0
    assert shade("demo").exit_code == 0
    assert ran[0] == {"report_dir": tmp_path, "endpoint": "http://h", "bucket": "b"}
    assert (ran[1]["endpoint"], ran[1]["bucket"], str(ran[1]["report_dir"])) == (None, None, "demo-report")


def test_demo_without_its_libraries_says_how_to_install_them(shade, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in {"torch", "PIL"} else name)
    result = shade("demo")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "error: the demo needs torch, pillow; in a checkout install with: pip install ./sdk '.[demo]'\n"
    )


def test_demo_with_nodes_hands_its_options_over(shade, monkeypatch, tmp_path):
    ran = []
    module = ModuleType("shadeproxy.demo.nodes")
    module.run_nodes = lambda *options: ran.append(options)
    monkeypatch.setitem(sys.modules, "shadeproxy.demo.nodes", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert shade("demo", "--report-dir", tmp_path, "--nodes", "3").exit_code == 0
    assert ran == [(tmp_path, 3, None, None)]


def test_demo_with_nodes_and_without_redis_says_in_one_line_how_to_install_it(shade, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda _: None)
    result = shade("demo", "--nodes", "3")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: demo --nodes needs redis-server or valkey-server (Debian, Ubuntu: apt-get install"
        " redis-server)\n"
    )


def test_demo_wants_endpoint_and_bucket_together(shade):
    result = shade("demo", "--endpoint", "http://h")
    assert result.exit_code == 2
    assert result.stderr == "error: --endpoint and --bucket belong together: write both or neither\n"


def test_bench_without_its_package_says_how_to_get_it(shade, monkeypatch):
    real = importlib.util.find_spec
    find = lambda name: None if name == "shadeproxy_bench" else real(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", find)
    result = shade("bench", "--quick")
    assert result.exit_code == 1
    assert "in a checkout install it with: pip install ./bench" in " ".join(result.stderr.split())


def test_bench_with_a_list_of_no_suites_measures_nothing(shade):
    result = shade("bench", "--suite", ",")
    assert result.exit_code == 2
    assert result.stderr == "error: --suite ',' names none; leave it out for all of them\n"


def test_the_console_script_ends_with_the_status():
    def status(*arguments):
        code = "import sys; sys.argv[0] = 'shadeproxy'; from shadeproxy.__main__ import run; run()"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )

    bad = status("config", "--set", "policy.name=x")
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: --set policy.name: ")
    assert status("version").stdout == "shadeproxy 0.1.0\n"
    assert status("no-such-command").returncode == 2


def test_the_collector_rests_only_while_the_command_line_is_imported():
    code = """
import gc, sys
from importlib import abc, machinery

class CommandLine(abc.MetaPathFinder, abc.Loader):
    def find_spec(self, name, *_):
        return machinery.ModuleSpec(name, self) if name == "shadeproxy.cli.main" else None

    def exec_module(self, module):
        print(gc.isenabled())
        module.run = lambda: print(gc.isenabled())

sys.meta_path.insert(0, CommandLine())
from shadeproxy.__main__ import run
run()
"""
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\nTrue\n"
