"""Producers with a buffer's file are killed in the middle of a storm: what then has arrived, once and in order.

`python -m tests.spool.kills --kills 2000` kills on embedded clusters, `--real` on three nodes of real Kafka.
"""
