"""The four real parts: what they are started with, and how one sees that they serve."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stack.accounts import PostgresPlace, postgres_version
from stack.jars import Jars
from stack.java import Java
from stack.lock import version_of
from stack.plan import Part, Probe, Step, write_atomically

EVENTS_DATABASE = "penstock"
REGISTRY_DATABASE = "registry"
MOST_SUBJECTS = 1_000_000

# Small heaps live better with the serial collector; a part that is out of memory had better die and
# be started again than limp on.
_JVM = ("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")
# Parts that mostly wait start in half the time when only the quick compiler is used.
_SMALL_JVM = (*_JVM, "-XX:TieredStopAtLevel=1")
# A worker that is busy answers late; one whose herder waits for a task that never ends stays so.
_CONNECT_HUNG_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the definitions need to know. `folder` is `.penstock`."""

    folder: Path
    ports: Mapping[str, int]
    jars: Jars
    java: Java


def local_dsn(port: int, password: str, database: str = EVENTS_DATABASE) -> str:
    """Return the libpq URL of a database of the local PostgreSQL."""
    return f"postgresql://postgres:{quote(password, safe='')}@127.0.0.1:{port}/{database}"


def with_database(dsn: str, database: str) -> str:
    """Return a libpq URL that leads to another database of the same server."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


def postgres(place: PostgresPlace, port: int, password_file: Path) -> Part:
    """PostgreSQL with logical decoding on, reached by TCP on the loopback interface only."""
    spec = {
        "programs": str(place.programs),
        "data": str(place.data),
        "uid": place.account.uid,
        "gid": place.account.gid,
        "password_file": str(password_file),
        "databases": [EVENTS_DATABASE, REGISTRY_DATABASE],
    }
    options = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_replication_slots": 64,
        "max_wal_senders": 64,
        "max_connections": 200,
        "shared_buffers": "128MB",
        "max_wal_size": "2GB",
        "jit": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    script = str(Path(__file__).with_name("cluster.py"))
    return Part(
        name="postgres",
        argv=(
            str(place.programs / "postgres"),
            *("-D", str(place.data)),
            *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
        ),
        probe=Probe(kind="postgres", port=port),
        steps=(
            Step(
                argv=(sys.executable, "-I", "-S", script, json.dumps(spec)),
                creates=str(place.data),
            ),
        ),
        cwd="/",
        version=postgres_version(),
        # "Fast" shutdown: ends sessions instead of waiting for them.
        stop_signal="SIGINT",
        grace_s=15,
        uid=place.account.uid,
        gid=place.account.gid,
    )


def kafka(around: Surroundings) -> Part:
    """One Kafka broker that is its own controller (KRaft)."""
    port, controller = around.ports["kafka"], around.ports["kafka_controller"]
    data = around.folder / "kafka"
    config = around.folder / "kafka.properties"
    _write_properties(
        config,
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            # Static, so that another port at the next start is no change of membership.
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(data),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.bytes": str(128 * 1024 * 1024),
            # What one request may have at most: how large a record may be is its topic's matter.
            "message.max.bytes": str(100 * 1024 * 1024),
            "controlled.shutdown.max.retries": "1",
        },
    )
    logging = _log4j2(around.folder / "kafka-log.properties", level="warn")
    java = (str(around.java.binary), *_SMALL_JVM, *logging, "-cp", around.jars.classpath("kafka"))
    return Part(
        name="kafka",
        argv=(*java[:1], "-Xms128m", "-Xmx512m", *java[1:], "kafka.Kafka", str(config)),
        probe=Probe(kind="kafka", port=port),
        steps=(
            Step(
                argv=(
                    *(*java[:1], "-Xmx128m", *java[1:]),
                    *("kafka.tools.StorageTool", "format", "--ignore-formatted"),
                    *("--cluster-id", _cluster_id(), "--config", str(config)),
                ),
                creates=str(data / "meta.properties"),
            ),
        ),
        version=version_of("kafka-server"),
        grace_s=15,
    )


def registry(around: Surroundings, dsn: str, needs: tuple[str, ...]) -> Part:
    """The schema registry, which keeps its schemas in PostgreSQL."""
    address = urlsplit(dsn)
    port = around.ports["registry"]
    jdbc = f"jdbc:postgresql://{address.hostname}:{address.port or 5432}{address.path}"
    if address.query:
        jdbc += f"?{address.query}"
    home = around.jars.registry_home()
    runner = next(home.glob("*-runner.jar"))
    return Part(
        name="registry",
        argv=(
            *(str(around.java.binary), "-Xms32m", "-Xmx256m", *_SMALL_JVM),
            *("-cp", f"{runner}:{home / 'lib'}/*", "io.quarkus.runner.GeneratedMain"),
        ),
        env={
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "postgresql",
            "APICURIO_DATASOURCE_URL": jdbc,
            "APICURIO_DATASOURCE_USERNAME": unquote(address.username or "postgres"),
            "APICURIO_DATASOURCE_PASSWORD": unquote(address.password or ""),
            # By itself it lists the first thousand, two for each captured table, and says nothing.
            "APICURIO_CCOMPAT_MAX_SUBJECTS": str(MOST_SUBJECTS),
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
            "LOG_LEVEL": "WARN",
        },
        probe=Probe(kind="http", port=port, path="/apis/ccompat/v7/subjects"),
        needs=needs,
        version=version_of("apicurio-registry-app"),
    )


def connect(around: Surroundings, needs: tuple[str, ...]) -> Part:
    """A Connect worker with Debezium and the Avro converter, exactly-once sources on."""
    port = around.ports["connect"]
    config = around.folder / "connect.properties"
    _write_properties(
        config,
        {
            "bootstrap.servers": f"127.0.0.1:{around.ports['kafka']}",
            "group.id": "connect",
            "key.converter": "io.apicurio.registry.utils.converter.AvroConverter",
            "value.converter": "io.apicurio.registry.utils.converter.AvroConverter",
            "config.storage.topic": "_connect_configs",
            "offset.storage.topic": "_connect_offsets",
            "status.storage.topic": "_connect_status",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "offset.storage.partitions": "2",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{port}",
            "plugin.path": str(around.jars.plugin_dir()),
            # Reading manifests alone takes a quarter of the time and half of the memory of
            # reading every class; the converter gets its manifest from us (stack/jars.py).
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
            # There is one worker: when it comes back, nobody else has taken its tasks.
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "2000",
            "rebalance.timeout.ms": "10000",
            "task.shutdown.graceful.timeout.ms": "3000",
        },
    )
    logging = _log4j2(around.folder / "connect-log.properties", level="info")
    return Part(
        name="connect",
        argv=(
            *(str(around.java.binary), "-Xms256m", "-Xmx768m", *_JVM, *logging),
            # PostgreSQL prints moments in the zone of the connector's session: see `PostgresText`.
            *("-Duser.timezone=UTC", "-cp", around.jars.classpath("kafka")),
            *("org.apache.kafka.connect.cli.ConnectDistributed", str(config)),
        ),
        # Other paths still answer while a task that does not end holds up the herder, and with it
        # every request of every connector. It takes the worker 10 s to say so.
        probe=Probe(kind="http", port=port, path="/health", limit_s=15.0),
        needs=needs,
        version=version_of("debezium-connector-postgres"),
        grace_s=15,
        hung_after_s=_CONNECT_HUNG_S,
    )


def _write_properties(path: Path, values: Mapping[str, str]) -> None:
    text = "".join(f"{key}={escaped(value)}\n" for key, value in values.items())
    write_atomically(path, text)


def escaped(value: str) -> str:
    """Write a value of a Java properties file, which is read as ISO 8859-1: a path may be more."""
    units = value.encode("utf-16-be", "surrogatepass")
    codes = (high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True))
    return "".join(
        chr(code) if 32 <= code < 127 and code != ord("\\") else f"\\u{code:04x}" for code in codes
    )


def _log4j2(path: Path, *, level: str) -> tuple[str, ...]:
    _write_properties(
        path,
        {
            "status": "error",
            "appender.out.type": "Console",
            "appender.out.name": "out",
            "appender.out.layout.type": "PatternLayout",
            "appender.out.layout.pattern": "%d{ISO8601} %-5p %c{1}: %m%n",
            "rootLogger.level": level,
            "rootLogger.appenderRef.out.ref": "out",
            # Prints its whole configuration at every start of a client.
            "logger.configs.name": "org.apache.kafka.common.config",
            "logger.configs.level": "warn",
            "logger.values.name": "org.apache.kafka.clients.consumer.ConsumerConfig",
            "logger.values.level": "warn",
        },
    )
    return (f"-Dlog4j2.configurationFile={path.as_uri()}",)


def _cluster_id() -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").lstrip("-")
