"""APIs about the cluster: its nodes, its controller, the APIs that it serves."""
