"""Consumer groups: members and their rebalances, in the classic protocol and in KIP-848, and committed offsets."""
