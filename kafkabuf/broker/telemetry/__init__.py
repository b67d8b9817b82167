"""The metrics that clients push to the nodes (KIP-714): who should push what, and what has arrived."""
