"""Protobuf: its descriptors, and the writers of columns and of Python objects."""
