"""The process that kafkabuf runs in: its threads, locks, time and logs, whatever the program has patched."""
