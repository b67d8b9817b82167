"""TLS: certificates and keys in PEM files and stores, SSLContexts of the ssl.* settings."""
