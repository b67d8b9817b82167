"""What a write has sent: reports, the markers that remember it, and its verification."""
