"""What the pool (`_pool`) stands on: slabs and blocks of the arena, and the bytes that a caller lends."""
