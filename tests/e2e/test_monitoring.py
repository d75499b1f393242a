"""The alert rules and the Grafana dashboard use only metric names and labels that a running proxy exports.
promtool accepts the rules.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "monitoring"
OF_PROMETHEUS = {"instance", "job", "exported_job", "le"}


def rules():
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return group["rules"]


def dashboard():
    return json.loads((MONITORING / "grafana" / "shadeproxy.json").read_text())


def expressions():
    found = [rule["expr"] for rule in rules()]
    found += [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [*found, *re.findall(r"^[a-z(1][^#`]*shadeproxy_.*$", metrics_examples(), re.MULTILINE)]


def metrics_examples():
    (block,) = re.findall(r"```\n(# hit ratio.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
    return block


@pytest.fixture(scope="module")
def metrics(serve_for_module, tmp_path_factory):
    """Return the metrics of a proxy that has answered reads of a job."""
    directory = tmp_path_factory.mktemp("buckets")
    (directory / "data").mkdir()
    (directory / "data" / "k").write_bytes(b"x" * 1000)
    proxy = serve_for_module(origin__kind="file", origin__path=str(directory))
    proxy.call("PUT", "/v1/jobs/resnet50", {})
    report = {"epoch": 0, "rank": 0, "position": 1, "stall_s": 1.0, "compute_s": 3.0}
    proxy.call("POST", "/v1/jobs/resnet50/progress", report)
    proxy.client().get_object(Bucket="data", Key="k")["Body"].read()
    return proxy.call("GET", "/metrics").decode()


@pytest.fixture(scope="module")
def shown(metrics):
    """Return the label names of each exported metric."""
    found = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_each_name_is_shown_by_a_running_proxy(shown):
    names = {name for text in expressions() for name in re.findall(r"\b(?:shadeproxy|process)_\w+", text)}
    assert len(names) > 30
    assert names - shown.keys() == set()


def test_each_label_is_of_its_metric_or_of_prometheus(shown):
    selected = 0
    for text in expressions():
        of_text = set().union(*(shown[name] for name in re.findall(r"\b(?:shadeproxy|process)_\w+", text)))
        for name, labels in re.findall(r"\b((?:shadeproxy|process)_\w+)\{([^}]*)\}", text):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels):
                selected += 1
                assert label in shown[name] | OF_PROMETHEUS, (label, text)
        for labels in re.findall(
            r"\b(?:by|on|ignoring) \(([^)]*)\)", text.replace("ignoring(", "ignoring (")
        ):
            for label in re.split(r",\s*", labels):
                assert label in of_text | OF_PROMETHEUS, (label, text)
    assert selected > 40


def test_no_rule_or_panel_uses_a_former_name():
    former = re.compile(r"shadeproxy_(?:connections_refused|tier_dropped_[a-z]+)\b(?!_total)")
    assert [text for text in expressions() if former.search(text)] == []


def test_each_rule_says_what_to_do_and_is_tested():
    tests = yaml.safe_load((MONITORING / "alerts-test.yml").read_text())["tests"]
    quiet, *wrong = ({one["alertname"]: one for one in test["alert_rule_test"]} for test in tests)
    fired = {name for test in wrong for name, one in test.items() if one.get("exp_alerts")}
    # Search all entries of a test, because the last one may expect that the alert has stopped.
    fired |= {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    names = {rule["alert"] for rule in rules()}
    assert fired == names == set(quiet)
    assert not [one for one in quiet.values() if one.get("exp_alerts")]
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_each_panel_has_a_place_of_its_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def promtool(*arguments, **options):
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, **options)


def test_the_metrics_of_a_running_proxy_are_clean(metrics):
    ran = promtool("check", "metrics", input=metrics)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_rules_pass_their_tests():
    ran = promtool("test", "rules", "alerts-test.yml", cwd=MONITORING)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_rule_that_is_wrong_fails_them(tmp_path):
    text = (MONITORING / "alerts.yml").read_text()
    assert text.count("[5m])) > 0.01") == 1
    (tmp_path / "alerts.yml").write_text(text.replace("[5m])) > 0.01", "[5m])) > 0.5"))
    shutil.copy(MONITORING / "alerts-test.yml", tmp_path)
    assert promtool("test", "rules", "alerts-test.yml", cwd=tmp_path).returncode != 0


def test_the_configuration_of_the_compose_file_is_right():
    config = ROOT / "docker" / "monitoring" / "prometheus.yml"
    compose = yaml.safe_load((ROOT / "docker" / "compose.monitoring.yaml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (ROOT / "docker" / source).exists(), volume
    (scrape,) = yaml.safe_load(config.read_text())["scrape_configs"]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/control_token"
    assert compose["services"]["prometheus"]["secrets"] == ["control_token"]
    ran = promtool("check", "config", "--syntax-only", str(config))
    assert ran.returncode == 0, ran.stdout + ran.stderr
