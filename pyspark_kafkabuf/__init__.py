"""Spark imports every top-level module called pyspark_* and registers its `DefaultSource`. Nothing native here: a
module that fails to import hides every Python data source of the session."""

from kafkabuf.spark import DefaultSource as DefaultSource
