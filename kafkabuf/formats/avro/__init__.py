"""Avro: its schemas, the choice of a union's branch, the writers of columns and objects."""
