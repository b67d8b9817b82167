"""Where the batches of a log lie: in memory (memory.py), or in Kafka's segments on disk (files.py, segment.py)."""
