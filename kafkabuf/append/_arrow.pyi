# Columns are read by _bulk without the GIL; nothing here is callable from Python.
