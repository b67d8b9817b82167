"""A file or a pipe becomes blocks of records, in bounded memory; rows that cannot be records are told apart."""
