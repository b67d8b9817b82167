"""What the faces of other clients share: names of settings, late lookups of hosts, errors of two libraries."""
