"""What the faces share."""
