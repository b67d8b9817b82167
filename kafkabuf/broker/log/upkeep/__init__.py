"""What goes on behind the logs: cleaning, deletion, checkpoints."""
