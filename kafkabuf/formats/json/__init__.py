"""JSON: its schemas, names and patterns of times, the writers of columns and objects."""
