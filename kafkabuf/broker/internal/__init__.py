"""The topics __consumer_offsets and __transaction_state: their records, and who writes them."""
