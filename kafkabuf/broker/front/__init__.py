"""A node's sockets: it accepts connections, reads frames and authenticates clients."""
