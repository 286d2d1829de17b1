"""Checks of the manifests that need no cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from caseworker.cli import cli
from caseworker.platform.http import health
from caseworker.settings.loader import SHARED_VARIABLES, load_settings
from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, variable_of

MANIFESTS = Path(__file__).parents[2] / "docs" / "operations" / "kubernetes.yaml"


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def environment(manifests: list[dict[str, Any]]) -> dict[str, str]:
    [config] = [each for each in manifests if each["kind"] == "ConfigMap"]
    data: dict[str, str] = config["data"]
    return data


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in manifests:
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]


def test_every_variable_is_a_setting_with_a_fit_value(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The values load like in the service, without a warning."""
    known = {variable_of(path) for path, _ in keys_of(Settings)} | {*SHARED_VARIABLES}
    loaded = load_settings(environment, tmp_path)

    assert set(environment) <= known
    assert not loaded.warnings
    assert loaded.settings.telemetry.metrics == "anywhere"


def test_every_pod_satisfies_the_restricted_standard(manifests: list[dict[str, Any]]) -> None:
    """The standard applies to every container of every pod; its root file system is read-only."""
    found = list(pods(manifests))
    for name, template in found:
        spec = template["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False, name
        assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"]), name
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert not any("hostPort" in port for port in container.get("ports", [])), name
    with_pods = [each for each in manifests if "template" in each.get("spec", {})]
    assert len(found) == len(with_pods) == 3


def test_every_folder_that_is_written_is_a_volume(manifests: list[dict[str, Any]]) -> None:
    """Temporary files go to the home of the image's user; the database is elsewhere."""
    dockerfile = (MANIFESTS.parents[2] / "Dockerfile").read_text(encoding="utf-8")
    for name, template in pods(manifests):
        [volume] = template["spec"]["volumes"]
        [container] = template["spec"]["containers"]
        [mount] = container["volumeMounts"]
        assert (mount["name"], f"--home-dir {mount['mountPath']} " in dockerfile) == (
            volume["name"],
            True,
        ), name
        assert {"secretRef": {"name": "caseworker"}} in container["envFrom"], name


def test_ports_and_probes_are_those_that_the_processes_answer(
    manifests: list[dict[str, Any]], environment: dict[str, str]
) -> None:
    """This includes the ports for scraping and for the service."""
    paths = {route.path for route in health.router.routes if hasattr(route, "path")}
    expected = {"api": environment["SERVER_PORT"], "worker": environment["WORKER_HEALTH_PORT"]}
    found = {}
    for _, template in pods(manifests):
        [container] = template["spec"]["containers"]
        if "ports" not in container:
            continue
        port = container["ports"][0]
        found[container["name"]] = str(port["containerPort"])
        assert template["metadata"]["annotations"]["prometheus.io/port"] == found[container["name"]]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["path"] in paths
            assert asked["port"] == port["name"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert found == expected


def test_the_api_reaches_workers_at_the_address_that_they_advertise(
    manifests: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Requests for external runs are forwarded to the worker that owns the run."""
    [worker] = [each for name, each in pods(manifests) if name == "caseworker-worker"]
    [container] = worker["spec"]["containers"]
    address, advertised = container["env"]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    url = advertised["value"].replace(f"$({address['name']})", "10.0.0.7")
    loaded = load_settings({advertised["name"]: url, address["name"]: "10.0.0.7"}, tmp_path)
    [forwarded] = [each for each in container["ports"] if each["name"] == "forwarded"]
    [policy] = [each for each in manifests if each["kind"] == "NetworkPolicy"]
    admitted = [rule for rule in policy["spec"]["ingress"] if {"port": 9000} in rule["ports"]]

    assert not loaded.warnings
    assert loaded.settings.server.advertise_url == "http://10.0.0.7:9000"
    assert forwarded["containerPort"] == 9000
    assert [rule["from"] for rule in admitted] == [
        [{"podSelector": {"matchLabels": {"app": "caseworker"}}}]
    ]


def test_a_pod_has_the_time_to_end_in_order(
    manifests: list[dict[str, Any]], environment: dict[str, str]
) -> None:
    """The grace period covers the wait before SIGTERM, the runs, and releasing them."""
    grace = float(environment["SHUTDOWN_GRACE_SECONDS"])
    for name, template in pods(manifests):
        if name.endswith("migrate"):
            continue
        [container] = template["spec"]["containers"]
        stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        waits = float(stop[1]) if stop else 0.0
        assert template["spec"]["terminationGracePeriodSeconds"] >= waits + 2 * grace


def test_every_command_is_one_of_the_cli(manifests: list[dict[str, Any]]) -> None:
    """All their options exist."""
    for _, template in pods(manifests):
        [container] = template["spec"]["containers"]
        shown = CliRunner().invoke(cli, [*container["args"], "--help"])
        assert shown.exit_code == 0, shown.output


def test_whatever_is_selected_exists(manifests: list[dict[str, Any]]) -> None:
    """Services, disruption budgets and deployments select existing pods, enough for the budget."""
    labels = [template["metadata"]["labels"] for _, template in pods(manifests)]
    for each in manifests:
        selector = each.get("spec", {}).get("selector")
        if selector is None:
            continue
        wanted = selector.get("matchLabels", selector)
        assert sum(wanted.items() <= given.items() for given in labels) == 1, each["kind"]
    replicas = [each["spec"]["replicas"] for each in manifests if each["kind"] == "Deployment"]
    kept = [
        each["spec"]["minAvailable"] for each in manifests if each["kind"] == "PodDisruptionBudget"
    ]
    assert len(kept) == len(replicas) == 2
    assert max(kept) < min(replicas)
