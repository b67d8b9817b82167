"""Protobuf: its descriptors, the writers of columns and objects."""
