"""The transaction coordinator: transactional ids, epochs, open transactions."""
