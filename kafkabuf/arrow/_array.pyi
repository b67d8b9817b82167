# Nothing in this module is callable from Python: walkers read the columns without the GIL.
