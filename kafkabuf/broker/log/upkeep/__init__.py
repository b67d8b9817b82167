"""Work behind the logs: compaction, deletion, checkpoints."""
