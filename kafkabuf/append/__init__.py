"""The caller's thread: a call becomes records in a slab."""
