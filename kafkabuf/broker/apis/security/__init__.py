"""Authentication, and access control lists."""
