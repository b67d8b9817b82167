"""Files and pipes become blocks of rows, in bounded memory; rows that cannot be records are refused (CSV too)."""
