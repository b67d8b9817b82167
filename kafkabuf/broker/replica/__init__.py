"""The copies of a partition: the leader appends and parks requests, followers fetch."""
