"""Idempotence and transactions: producer ids, epochs, states, requests to coordinators."""
