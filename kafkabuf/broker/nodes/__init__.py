"""The nodes, the catalogue of topics, the controller that elects leaders, their journal."""
