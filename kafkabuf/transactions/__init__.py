"""Idempotence and transactions: producer ids, epochs, sequences, states and requests."""
