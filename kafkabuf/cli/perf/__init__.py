"""`kafkabuf perf`: a load, through kafkabuf and other clients."""
