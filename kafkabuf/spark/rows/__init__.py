"""Rows: their columns, their keys and values, and how one task attempt sends them."""
