"""What lives in a Python worker from task to task: producers, limits of topics, notes."""
