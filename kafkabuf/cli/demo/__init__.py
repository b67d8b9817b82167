"""`kafkabuf demo`: Spark writes a table, and another client reads it back."""
