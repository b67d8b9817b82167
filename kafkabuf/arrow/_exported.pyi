# Nothing in this module is callable from Python: it takes Arrow data out of capsules for other modules.
