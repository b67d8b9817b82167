"""Idempotence and transactions: producer ids, epochs, states, and the requests to coordinators."""
