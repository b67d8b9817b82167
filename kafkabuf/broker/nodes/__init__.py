"""The nodes, the topics, and the controller that elects leaders."""
