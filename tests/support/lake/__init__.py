"""Lakes for tests: written by hand without Kafka and Spark, or fed through the real broker."""
