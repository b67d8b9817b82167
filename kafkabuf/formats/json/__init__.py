"""JSON: its schemas, names and patterns of times, and the writers of columns and of Python objects."""
