"""The cluster: its nodes, its controller, the APIs that it serves."""
