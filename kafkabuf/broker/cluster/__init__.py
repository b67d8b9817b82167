"""The life of a cluster: it makes, starts and stops its nodes, and what a test orders of all logs."""
