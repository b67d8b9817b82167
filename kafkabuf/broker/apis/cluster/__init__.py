"""What the cluster is."""
