"""Consumer groups of both protocols (classic, KIP-848): members, rebalances, offsets."""
