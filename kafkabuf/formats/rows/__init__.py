"""What all formats share: programs that encode columns, and the writer of Python objects."""
