"""What all formats share: the program that makes the values of a column, and the objects of a single record."""
