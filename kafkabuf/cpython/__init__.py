"""CPython's insides: arguments of methods, sealed types, a slot that refuses `await`."""
