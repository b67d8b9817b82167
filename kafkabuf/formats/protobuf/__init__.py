"""Protobuf: descriptors, and what makes values of columns and of objects."""
