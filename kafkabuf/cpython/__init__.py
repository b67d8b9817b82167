"""All that knows CPython's insides: arguments of methods, sealed types, type hints for Cython."""
