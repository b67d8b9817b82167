"""Kafka's wire protocol: the few hot messages written out by hand, every other through the `kio` schemas.

Shared by client and broker; knows nothing of either.
"""
