"""Records: Produce, Fetch, lookups of offsets."""
