"""Structured values: rows become bytes in a format, and schemas live in a Schema Registry."""
