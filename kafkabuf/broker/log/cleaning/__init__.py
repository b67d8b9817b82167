"""Compaction: what a log keeps of its batches (rewriting.py, transactions.py, cleaning.py), and when (cleaner.py)."""
