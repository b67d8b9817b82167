"""`deliveryGuarantee`: a file for each."""
