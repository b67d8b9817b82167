"""What the record encoder (`_records`) stands on: numbers as Kafka writes them, checksums, the hash of keys."""
