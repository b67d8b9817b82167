"""TLS: from the ssl.* settings, PEM files and stores to an SSLContext."""
