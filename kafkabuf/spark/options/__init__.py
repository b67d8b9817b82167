"""The options of a write, `.option(...)`: their names, checks and defaults."""
