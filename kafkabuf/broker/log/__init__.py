"""The log of one copy of a partition: appends, offsets, producers, leader epochs."""
