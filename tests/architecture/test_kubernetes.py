"""The objects for Kubernetes: right by its schemas, the image's own versions, no secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from apps.settings import Settings, load
from lake.shipment import is_elsewhere
from lake.spark_session import FIXED, with_asked
from tests.architecture.tree import ROOT

FILE = ROOT / "deploy/kubernetes/penstock.yaml"
IMAGE = "penstock"


@cache
def objects() -> tuple[dict[str, Any], ...]:
    return tuple(yaml.safe_load_all(FILE.read_text()))


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each for each in objects() if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


@cache
def files() -> dict[str, str]:
    """Return the files that pods find in the workspace."""
    found: dict[str, str] = named("ConfigMap", "penstock")["data"]
    return found


def executor() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files()["executor.yaml"])
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Return what the pods of each part are made from."""
    return {
        "service": named("Deployment", "penstock-service")["spec"]["template"],
        "pipeline": named("StatefulSet", "penstock-pipeline")["spec"]["template"],
    }


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "penstock.toml").write_text(files()["penstock.toml"])
    return load(tmp_path)


@pytest.mark.parametrize(
    "found", objects(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_every_object_fits_the_schemas_of_kubernetes(found: dict[str, Any]) -> None:
    for version in ("1.31", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(found, version, strict=True)


def test_the_template_of_executors_fits_as_well() -> None:
    kubernetes_validate.validate(executor() | _with_image(), "1.31", strict=True)


def _with_image() -> dict[str, Any]:
    """Return the template as Spark completes it."""
    spec = executor()["spec"]
    (container,) = spec["containers"]
    return {
        "metadata": {**executor()["metadata"], "name": "executor"},
        "spec": {**spec, "containers": [{**container, "image": IMAGE}]},
    }


def test_spark_is_told_what_the_objects_say(settings: Settings) -> None:
    spark, pipeline = settings.spark(), pods()["pipeline"]["spec"]
    assert is_elsewhere(settings.text("spark.master"))
    assert with_asked(FIXED, spark) == FIXED | spark
    (container,) = pipeline["containers"]
    assert spark["spark.kubernetes.container.image"] == container["image"]
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert spark["spark.kubernetes.executor.podTemplateFile"] in mounted
    (own,) = executor()["spec"]["containers"]
    assert spark["spark.kubernetes.executor.podTemplateContainerName"] == own["name"]
    service = named("Service", "penstock-pipeline")
    namespace = spark["spark.kubernetes.namespace"]
    assert spark["spark.driver.host"] == f"{service['metadata']['name']}.{namespace}.svc"
    ports = {str(each["port"]) for each in service["spec"]["ports"]}
    assert {spark["spark.driver.port"], spark["spark.driver.blockManager.port"]} < ports
    assert spark["spark.kubernetes.driver.pod.name"] == f"{service['metadata']['name']}-0"


@pytest.mark.parametrize("part", ["service", "pipeline"])
def test_pods_find_their_settings_and_are_reached(part: str, settings: Settings) -> None:
    labels = pods()[part]["metadata"]["labels"]
    service = named("Service", f"penstock-{part}")
    assert service["spec"]["selector"] == labels
    (container,) = pods()[part]["spec"]["containers"]
    mounts = {each["mountPath"]: each.get("subPath") for each in container["volumeMounts"]}
    for path, file in mounts.items():
        assert file is None or (file in files() and path == f"/workspace/{file}")
    port = settings.number(f"{part}.port")
    assert port in {each["containerPort"] for each in container["ports"]}
    assert settings.text(f"{part}.url") == f"http://{service['metadata']['name']}:{port}"
    assert f":{port}/" in container["readinessProbe"]["exec"]["command"][-1]


@pytest.mark.parametrize("part", ["service", "pipeline"])
def test_pods_that_hang_are_started_again_and_those_that_wait_are_not(part: str) -> None:
    (container,) = pods()[part]["spec"]["containers"]
    ready = container["readinessProbe"]["exec"]["command"]
    live = [*ready[:-1], ready[-1].replace("/health/ready", "/health/live")]
    assert ready != live
    for name in {"startupProbe", "livenessProbe"} & container.keys():
        probe = container[name]
        assert probe["exec"]["command"] == live
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 120
    assert "livenessProbe" in container


@pytest.mark.parametrize("part", ["service", "pipeline", "executor"])
def test_what_kubernetes_tells_of_services_is_not_taken_for_settings(part: str) -> None:
    """Each pod is given PENSTOCK_SERVICE_PORT=tcp://… of the service of that name, unless not."""
    pod = executor() if part == "executor" else pods()[part]
    assert pod["spec"]["enableServiceLinks"] is False


def test_the_image_has_what_the_lake_of_these_objects_needs(settings: Settings) -> None:
    scheme = settings.lake.partition("://")[0]
    (resolved,) = re.findall(r"resolve\((.*?)\)", (ROOT / "Dockerfile").read_text())
    assert f"'{scheme}'" in resolved


def test_the_image_is_of_this_version() -> None:
    (version,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    images = {each["image"] for pod in pods().values() for each in pod["spec"]["containers"]}
    assert images == {f"{IMAGE}:{version}"}


def test_no_secret_is_in_the_file() -> None:
    assert not [each for each in objects() if each["kind"] == "Secret"]
    assert not re.search(
        r"(?i)(password|token|secret_access_key|dsn) *[:=] *(?!false)\S", _own_text()
    )


def _own_text() -> str:
    """Return the file without its head, which says how the secret is made."""
    return "\n".join(line for line in FILE.read_text().splitlines() if not line.startswith("#"))


def test_the_image_starts_commands_and_executors(tmp_path: Path) -> None:
    """The entry is run with a Java that tells how it was started."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP"
    environ = {f"SPARK_{name}": name.lower() for name in names.split()}
    environ |= {"SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod"}
    environ |= {"SPARK_EXECUTOR_MEMORY": "2g", "SPARK_JAVA_OPT_1": "-Db=2"}
    environ |= {"SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_10": "-Dc=3"}
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(*words: str) -> list[str]:
        done = subprocess.run(
            [ROOT / "deploy/entrypoint.sh", *words],
            env={"PATH": path, **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    told = run("executor")
    assert told[:5] == ["-Da=1 2", "-Db=2", "-Dc=3", "-Xms2g", "-Xmx2g"]
    backend = told.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert told[backend + 1 : backend + 3] == ["--driver-url", "driver_url"]
    assert told[-2:] == ["--podName", "pod"]
    jars = Path(told[told.index("-cp") + 1]).parent
    assert list(jars.glob("spark-kubernetes_*.jar")), "Spark brings its part for Kubernetes"
    assert run("echo", "a command") == ["a command"]
    assert 'ENTRYPOINT ["/opt/penstock/deploy/entrypoint.sh"]' in (ROOT / "Dockerfile").read_text()
