# Nothing in this module is callable from Python: the compiled send() holds keys, values and headers with it.
