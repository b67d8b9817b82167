"""`kafkabuf produce`: inputs become rows, rows become blocks, and blocks are delivered in order."""
