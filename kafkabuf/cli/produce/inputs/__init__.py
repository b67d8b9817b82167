"""Files and pipes become rows in bounded memory; a row that cannot be a record is refused."""
