"""Where a log's batches lie: in memory, or in files."""
