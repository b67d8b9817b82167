"""The metrics that clients push to the nodes (KIP-714)."""
