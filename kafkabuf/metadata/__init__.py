"""What is known of the cluster: its nodes, topics, partitions and leaders."""
