"""Records wait, under the GIL: the batches of each partition, which of them may go, and what became of them."""
