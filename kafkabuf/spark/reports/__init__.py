"""What a write has sent, and the markers that remember it."""
