"""What Penstock adds to Spark: how Delta commits on an S3 store, with its source and its jar.

Upstream: Delta's Spark connector. Downstream: the store's conditional put. Used by
`stack.jars.Jars`. Entry point: `JAR`; `build` makes it anew where there is a Java compiler.
"""

from pathlib import Path

JAR = Path(__file__).parent / "penstock-spark.jar"
