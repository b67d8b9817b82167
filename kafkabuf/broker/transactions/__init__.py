"""The transaction coordinator: transactional ids, their epochs and their open transactions."""
