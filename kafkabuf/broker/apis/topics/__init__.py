"""APIs about topics and partitions: create, delete, describe, elect leaders."""
