"""Under the record encoder (`_records`): Kafka's numbers, checksums, the hash of keys."""
