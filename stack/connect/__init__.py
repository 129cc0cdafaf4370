"""What Penstock adds to Kafka Connect: a transformation, a converter, their sources and their jar.

Upstream: Debezium's values and records. Downstream: the Avro converter. Used by `stack.jars.Jars`
and by the compose file. Entry point: `JAR`; `build` makes it anew where there is a Java compiler.
"""

from pathlib import Path

JAR = Path(__file__).parent / "penstock-connect.jar"
