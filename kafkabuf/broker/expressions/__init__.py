"""Regular expressions of clients, matched in bounded time."""
