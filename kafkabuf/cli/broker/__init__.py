"""`kafkabuf broker`: the embedded cluster as a command, and the tables that it shows."""
