"""Kafka's wire protocol: hand-written codecs for the few hot messages, tables for the other messages of our clients,
and the schemas of `kio` for all others, which only the broker needs.

Client and broker share it. It depends on neither.
"""
