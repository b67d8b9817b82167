"""`kafkabuf spool`: what the file of a buffer holds, without the application."""
