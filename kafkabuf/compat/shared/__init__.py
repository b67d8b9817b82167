"""What these faces share: settings, late lookups of hosts, errors of two libraries."""
