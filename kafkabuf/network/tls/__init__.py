"""TLS: reads certificates and keys (PEM files, JKS and PKCS12 stores), makes SSLContexts of the ssl.* settings."""
