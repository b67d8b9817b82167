"""SASL: from the sasl.* settings to passwords, tokens and tickets, with a file for each mechanism."""
