"""What a node refuses or delays: ACLs, quotas, limits, and the faults that a test asks for."""
