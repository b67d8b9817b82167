"""Requests of Spark and the command line: topics, configs, groups, offsets, transactions."""
