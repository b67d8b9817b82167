"""Spark's API of Python data sources. PySpark 3 has no such API: there the classes are empty, and Spark calls none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark

HAS_DATA_SOURCES = find_spec("pyspark.sql.datasource") is not None


def no_data_sources() -> str:
    """Why PySpark 3 does not know the format, as the beginning of a sentence."""
    return f"PySpark {pyspark.__version__} has no Python data sources"


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource as DataSource
    from pyspark.sql.datasource import DataSourceArrowWriter as DataSourceArrowWriter
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.datasource import WriterCommitMessage as WriterCommitMessage

    StreamArrowWriter = DataSourceStreamWriter
elif HAS_DATA_SOURCES:
    from pyspark.sql import datasource
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        StreamArrowWriter = datasource.DataSourceStreamArrowWriter
    else:  # PySpark 4.0 takes a stream writer that is an Arrow writer too

        class StreamArrowWriter(datasource.DataSourceStreamWriter, DataSourceArrowWriter):
            pass

else:

    class DataSource:
        def __init__(self, options: dict[str, str]) -> None:
            self.options = options

    class DataSourceArrowWriter:
        pass

    class StreamArrowWriter:
        pass

    class WriterCommitMessage:
        pass
