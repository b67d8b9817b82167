"""What a write has sent: reports, markers that remember it, its verification."""
