"""The nodes, the catalogue of topics, the controller that elects leaders, and the journal that remembers them."""
