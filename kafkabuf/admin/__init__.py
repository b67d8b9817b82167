"""What the command line and Spark ask a cluster: topics, configs, groups, offsets, open transactions."""
