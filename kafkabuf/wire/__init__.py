"""What lies under the records: numbers as Kafka writes them, checksums, and the hash of keys."""
