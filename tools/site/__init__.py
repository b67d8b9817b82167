"""What `make docs` needs beside mkdocs: mkdocs.yml names the modules."""
