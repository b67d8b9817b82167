"""The Sender's thread: it sends batches, and acknowledges, retries or fails them."""
