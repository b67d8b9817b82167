"""Topics and partitions: create, delete, describe, elect leaders."""
