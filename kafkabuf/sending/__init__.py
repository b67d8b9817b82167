"""The Sender's thread: it sends batches, acknowledges, retries or fails them; its turn and its life."""
