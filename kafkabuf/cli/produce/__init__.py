"""`kafkabuf produce`: files and pipes become records, which are delivered in order and can be resumed."""
