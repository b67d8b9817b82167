"""What a node refuses, delays or bounds: ACLs, quotas, limits, expressions, and the faults that a test asks for."""
