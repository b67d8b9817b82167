"""Producers with the names, arguments and results of other clients, over KafkaProducer: one folder for each.

A program moves with one import: `from kafkabuf.compat.kafka_python import KafkaProducer`,
`from kafkabuf.compat.confluent import Producer`. Importing this package loads no other module.
"""
