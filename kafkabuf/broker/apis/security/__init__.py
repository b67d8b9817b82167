"""APIs about authentication and access control lists."""
