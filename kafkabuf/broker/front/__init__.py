"""A node's side of a connection: it accepts sockets, reads frames and authenticates clients."""
