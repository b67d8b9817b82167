"""Where the batches of a log lie: in memory (memory.py), or in segments on disk as Kafka's (files.py, segment.py)."""
