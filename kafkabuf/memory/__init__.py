"""Under the pool (`_pool`): slabs and blocks of the arena, the bytes that a caller lends."""
