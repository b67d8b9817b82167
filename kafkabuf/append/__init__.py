"""The caller's thread: send(), send_many() and send_arrow() become records in a slab."""
