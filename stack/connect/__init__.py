"""What Penstock adds to Kafka Connect: one transformation, its source and its jar.

Upstream: Debezium's records. Downstream: the Avro converter. Used by `stack.jars.Jars` and
by the compose file. Entry point: `JAR`; `build` makes it anew where there is a Java compiler.
"""

from pathlib import Path

JAR = Path(__file__).parent / "penstock-connect.jar"
