"""One HTTP request with an end, for token endpoints and schema registries."""
