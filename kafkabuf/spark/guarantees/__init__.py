"""How a write or a micro-batch is committed: one file for each `deliveryGuarantee`."""
