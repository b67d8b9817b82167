"""How a write makes keys and values of columns where rows name their topics, and a registry has subjects by topic.

The driver asks the registry about the topics of option `topics`: then no task gets a setting of the registry. Without
the option it cannot know the topics, because Spark shows a data source no plan. So each task asks about a topic at the
first row that names it, and gets the settings of the registry for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from kafkabuf.errors import ConfigError, SchemaRegistryError, SerializationError
from kafkabuf.metadata.topic_names import is_legal_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafkabuf.spark.options.format_options import FormatOptions
    from kafkabuf.spark.options.record_formats import RecordFormats

_CONFLICT = 409  # the status of HTTP: the schema is not compatible, or two tasks registered it at once


@dataclass(frozen=True)
class TopicFormats:
    """The formats of each topic. Spark pickles this to the tasks. `schema` is that of the DataFrame.

    `known` has the topics that the driver has asked about, None if the user has named no topics. `timeout` is the
    seconds that the registry may take for each of value and key. `has_headers`: a header names a schema.
    """

    options: FormatOptions
    schema: StructType = field(repr=False)
    timeout: float
    has_headers: bool
    known: dict[str, RecordFormats] | None = None

    @classmethod
    def resolved(cls, options: FormatOptions, schema: StructType, topics: Iterable[str], timeout: float) -> Self:
        """What the tasks get. `topics` are those that the user has named. Raises what `FormatOptions.resolved` raises.

        Without such topics it raises the errors of columns that do not fit, unless the registry names the schemas.
        """
        formats = cls(options, schema, timeout, options.names_schemas_in_headers)
        known = {topic: formats.of(topic) for topic in topics}
        if known:
            return replace(formats, options=replace(options, registry=()), known=known)
        if not options.registry_names_schemas:
            formats.without_topic()
        return formats

    def of(self, topic: str) -> RecordFormats:
        """The formats of a topic. May wait for the registry. Raises ConfigError where the user has not named the topic.

        The registry never hears of a topic whose name is not legal: Kafka refuses its rows.
        """
        if not is_legal_topic(topic):
            return self.without_topic()
        if self.known is None:
            try:
                return self._ask(topic)
            except SchemaRegistryError as error:
                if error.retriable:
                    raise
                raise SerializationError(f"topic '{topic}': {error}") from None  # each attempt would end so
        if topic not in self.known:
            raise ConfigError(f"a row names topic '{topic}', and option 'topics' does not: add the topic there")
        return self.known[topic]

    def _ask(self, topic: str) -> RecordFormats:
        try:
            return self.options.resolved(self.schema, topic, self.timeout)
        except SchemaRegistryError as error:
            if error.status != _CONFLICT:
                raise
        # Another task may have made the subject in the same moment, which some registries refuse: it is there now.
        return self.options.resolved(self.schema, topic, self.timeout)

    def without_topic(self) -> RecordFormats:
        """The formats of rows that Kafka refuses, as they are without a registry."""
        return replace(self.options, registry=()).resolved(self.schema, None, 0.0)
