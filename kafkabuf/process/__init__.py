"""The process around us: threads, locks, clocks and logs, whatever a program has patched."""
