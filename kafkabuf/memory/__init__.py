"""What lies under the pool: slabs and blocks of the arena, and the bytes that a caller lends."""
