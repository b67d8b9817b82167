"""Settings of nodes, topics and groups under Kafka's names."""
