"""Records: produce, fetch, offsets."""
