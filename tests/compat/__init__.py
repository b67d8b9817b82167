"""The producers with the names of other clients (kafkabuf.compat)."""

TOPIC = "orders"  # with four partitions, in the cluster of conftest.py
