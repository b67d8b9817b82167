"""APIs about records: Produce, Fetch, and lookups of offsets."""
