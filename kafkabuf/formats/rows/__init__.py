"""What all formats share: the program that makes values of columns, and the writer of Python objects."""
