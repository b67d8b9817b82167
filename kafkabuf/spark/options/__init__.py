"""What the user gave: `.option(...)`."""
