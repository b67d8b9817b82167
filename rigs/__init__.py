"""Rigs that tests, benchmarks and tools share: real Apache Kafka, its jars, and producers without a network."""
