"""APIs about transactions, and about the producers of partitions."""
