"""SASL, a file for each mechanism: passwords, tokens and tickets by the sasl.* settings."""
