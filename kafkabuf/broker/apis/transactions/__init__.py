"""Transactions, and the producers of partitions."""
