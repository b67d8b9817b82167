"""The life of a cluster: it makes, starts and stops its nodes."""
