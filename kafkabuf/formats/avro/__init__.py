"""Avro: its schemas, and the writers of columns and of Python objects, unions included."""
