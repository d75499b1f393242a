"""The Helm chart: its objects fit each other and the proxy. For a bad value, a message says what
to change.
"""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from shadeproxy.config import Settings
from tests.support.chart import Chart, Failed

CHART = Path(__file__).parent.parent / "docker" / "helm" / "shadeproxy"
SECRET = {
    "awsAccessKeyId": "a", "awsSecretAccessKey": "b", "trainerSecret": "c", "controlToken": "d",
    "clusterSecret": "e" * 16,
}  # fmt: skip
CLUSTER = {"name": "trainers", "engine": "redis://valkey:6379/0"}
VARIANTS = [
    {
        "kind": kind,
        "secret": SECRET,
        "serviceMonitor": {"enabled": True},
        "disk": {"prepare": prepare},
        "image": {"digest": "sha256:1"},
    }
    for kind in ("DaemonSet", "StatefulSet")
    for prepare in (True, False)
]
VARIANTS += [{**one, "cluster": CLUSTER} for one in VARIANTS]
OLDEST = re.search(r'kubeVersion: ">=(\d+\.\d+)\.', (CHART / "Chart.yaml").read_text())[1]
INFORMATION = 1  # The severity of messages of the linter that name no fault, such as a missing icon.


def objects(**values):
    found = Chart(CHART, {"secret": SECRET, **values}).objects()
    return {one["kind"]: one for one in found}


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("DaemonSet", {"DaemonSet", "ConfigMap", "Secret", "Service", "NetworkPolicy"}),
        (
            "StatefulSet",
            {"StatefulSet", "PodDisruptionBudget", "ConfigMap", "Secret", "Service", "NetworkPolicy"},
        ),
    ],
)
def test_each_kind_has_its_objects_and_they_name_each_other(kind, kinds):
    found = objects(kind=kind)
    assert found.keys() == kinds
    pod = found[kind]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (
        found[kind]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"][0]["secretRef"]["name"] == found["Secret"]["metadata"]["name"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == ports == {"s3", "control"}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in found[kind]["spec"].get("volumeClaimTemplates", ())}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]} | claimed
    assert ("hostPort" in container["ports"][0]) == (kind == "DaemonSet")


def test_the_memory_limit_follows_the_ram_tier():
    for capacity in (1024, 65536):
        found = objects(ram={"capacityMiB": capacity}, process={"memoryMiB": 1000})
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"memory": f"{capacity + 1000}Mi"}
        (ram,) = [volume for volume in pod["volumes"] if volume["name"] == "ram"]
        assert ram["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{capacity + 64}Mi"}


def test_the_proxy_understands_the_configuration(tmp_path, monkeypatch):
    for name in ("TRAINER_SECRET", "CONTROL_TOKEN"):
        monkeypatch.setenv(name, "secret")
    found = objects(
        origin={"endpoint": "https://store.example.org", "httpProxy": "http://way.example.org:3128"},
        ram={"capacityMiB": 4096},
        config='[policy]\nname = "lru"\n',
    )
    file = tmp_path / "config.toml"
    file.write_text(found["ConfigMap"]["data"]["config.toml"])
    settings = Settings.load(file)
    assert (settings.origin.endpoint, settings.policy.name) == ("https://store.example.org", "lru")
    assert settings.origin.http_proxy == "http://way.example.org:3128"
    assert settings.cache.ram.capacity == 4096 * 1024**2
    pod = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
    mounts = {mount["mountPath"] for mount in pod["volumeMounts"]}
    assert str(settings.cache.ram.path.parent) in mounts
    assert settings.control.resolve_token() == settings.auth.clients[0].secret() == "secret"


@pytest.mark.parametrize("kind", ["DaemonSet", "StatefulSet"])
def test_the_proxies_of_a_cluster_reach_each_other_at_the_addresses_of_their_pods(
    kind, tmp_path, monkeypatch
):
    found = objects(kind=kind, cluster=CLUSTER)
    (container,) = found[kind]["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one for one in container["env"]}
    assert variables["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    for name, value in found["Secret"]["stringData"].items():
        monkeypatch.setenv(name, value)
    told = variables["SHADEPROXY__CLUSTER__ADVERTISE"]["value"].replace("$(POD_IP)", "10.1.2.3")
    monkeypatch.setenv("SHADEPROXY__CLUSTER__ADVERTISE", told)
    file = tmp_path / "config.toml"
    file.write_text(found["ConfigMap"]["data"]["config.toml"])
    cluster = Settings.load(file).cluster
    assert (cluster.name, cluster.engine, cluster.is_owned) == (*CLUSTER.values(), True)
    assert cluster.advertise == "10.1.2.3:9002"
    assert {"name": "peer", "containerPort": cluster.listen.port} in container["ports"]
    clients, peers = found["NetworkPolicy"]["spec"]["ingress"]
    labels = found[kind]["spec"]["template"]["metadata"]["labels"]
    assert peers["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert peers["ports"] == [{"port": "peer"}]
    assert "peer" not in {port["port"] for port in clients["ports"]}


def test_nothing_runs_as_root_but_what_gives_the_directory_away():
    pod = objects()["DaemonSet"]["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    without = objects(disk={"prepare": False})["DaemonSet"]["spec"]["template"]["spec"]
    assert "initContainers" not in without


def test_a_changed_configuration_restarts_the_pods():
    def checksum(**values):
        return objects(**values)["DaemonSet"]["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]

    assert checksum() == checksum()
    assert checksum() != checksum(config='[policy]\nname = "lru"')


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"secret": {"controlToken": ""}}, "set existingSecret, or secret.awsAccessKeyId"),
        ({"kind": "Deployment", "existingSecret": "s"}, "kind: write DaemonSet or StatefulSet"),
        ({"cluster": {"name": "c"}, "existingSecret": "s"}, "set cluster.engine"),
    ],
)
def test_bad_values_are_refused_in_words(values, text):
    with pytest.raises(Failed, match=text):
        Chart(CHART, values).objects()


def test_a_secret_of_ones_own_is_used_and_none_is_made():
    found = objects(existingSecret="mine", serviceMonitor={"enabled": True}, image={"digest": "sha256:1"})
    assert "Secret" not in found
    (container,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert container["image"] == "shadeproxy@sha256:1"
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "mine", "key": "CONTROL_TOKEN"}


def require_valid(found, version):
    """Raise ValidationError if Kubernetes does not know a field of the objects. Return the kinds of the
    objects.

    A ServiceMonitor is not checked: it belongs to the Prometheus operator, so Kubernetes has no schema for
    it.
    """
    valid = {one["kind"]: one for one in found if one["kind"] != "ServiceMonitor"}
    for one in valid.values():
        kubernetes_validate.validate(one, version, strict=True)
    return valid.keys()


@pytest.mark.parametrize("values", VARIANTS)
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(values, version):
    found = Chart(CHART, values).objects()
    kinds = {one["kind"] for one in found}
    assert require_valid(found, version) == kinds - {"ServiceMonitor"}
    assert {values["kind"], "ConfigMap", "Service", "NetworkPolicy"} <= kinds


def test_a_field_that_kubernetes_does_not_know_is_found():
    found = objects()
    found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFilesystem"):
        require_valid(found.values(), OLDEST)


# Only `make chart` installs Helm, so this test imports it itself.
@pytest.mark.helm
@pytest.mark.parametrize("values", VARIANTS)
def test_helm_finds_no_fault_and_renders_the_same(values):
    import helm_python

    report = helm_python.lint(CHART, values, strict=True)
    faults = [one for one in report["messages"] if one["severity"] > INFORMATION]
    assert (report["total_charts_linted"], report["errors"], faults) == (1, [], [])
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="shade", namespace="training")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    rendered = [one for text in texts for one in yaml.safe_load_all(text) if one]
    require_valid(rendered, OLDEST)
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in rendered}
    assert by_name == {(one["kind"], one["metadata"]["name"]): one for one in Chart(CHART, values).objects()}


@pytest.mark.helm
def test_helm_refuses_bad_values_in_words():
    import helm_python

    with (
        helm_python.Chart.load(CHART) as chart,
        pytest.raises(helm_python.HelmRenderError, match="kind: write DaemonSet or StatefulSet"),
    ):
        chart.render({"kind": "Deployment", "existingSecret": "s"}, name="shade")
