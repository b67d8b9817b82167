"""Measurements: every number in our documents comes from a command here, with its peers in the same run."""
