"""The faces of other clients over KafkaProducer: their names, arguments, results and errors.

A program moves with one import: `from kafkabuf.compat.kafka_python import KafkaProducer`,
`from kafkabuf.compat.confluent import Producer`. Importing this package loads no other module.
"""
