"""How Spark finds the format: Spark imports every top-level module pyspark_* and registers its `DefaultSource`.

This module must load no extension: if its import fails, Spark finds no Python data source in the session.
"""

from kafkabuf.spark import DefaultSource as DefaultSource
