"""Kafka's wire protocol: hand-written codecs for the few hot messages, tables for the other messages of a client, and
the schemas of `kio` for all others.

Client and broker share it. It depends on neither.
"""
