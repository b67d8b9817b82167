# What the compiled callers of send() borrow; nothing here is callable from Python.
