"""Avro: schemas, and what makes values of columns and of objects."""
