"""The log of one copy of a partition: it appends batches, and knows offsets, producers and leader epochs."""
