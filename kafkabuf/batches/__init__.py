"""Under the GIL: records wait in batches, which go when it is time, and get an outcome."""
