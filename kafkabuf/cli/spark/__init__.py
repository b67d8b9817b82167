"""`kafkabuf spark`: what the cluster knows of the Spark sinks."""
