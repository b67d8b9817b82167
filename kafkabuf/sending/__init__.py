"""The Sender's thread: its turn, its life, and what becomes of a batch that fails."""
