"""`kafkabuf spool`: what a buffer's file holds, and what can be done with it without the application."""
