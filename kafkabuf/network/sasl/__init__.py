"""SASL: from the sasl.* settings to credentials, a file for each mechanism."""
