"""What a node refuses or delays: ACLs, credentials, limits, quotas, faults that a test asks for; its request log."""
