"""Before there are tasks: do the brokers answer, and are there the topics that options name?

A task that has to find out is tried again, as often as spark.task.maxFailures says and for max.block.ms each time. The
driver asks once, and says which option to mend. It is asked when Spark pickles the writer: see writer.py.
"""

from __future__ import annotations

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import InvalidTopicError, TimeoutError, TopicAuthorizationError, UnknownTopicOrPartitionError
from kafkabuf.metadata.admin import Admin
from kafkabuf.spark.options import Guarantee, SinkOptions

# What has been found there, by this worker of the driver's: a stream asks for its first micro-batch only.
_seen: set[SinkOptions] = set()


def check(options: SinkOptions, *, again: bool) -> None:
    """Raises what `look` does. `again`: also where it has been looked before. Connects, for one or two requests."""
    if not options.driver_check or (options in _seen and not again):
        return
    with Admin(ProducerConfig.from_mapping(dict(options.producer))) as admin:
        look(admin, options)
    _seen.add(options)


def look(admin: Admin, options: SinkOptions) -> None:
    """Raises the error, after max.block.ms at most if it might pass: no broker, no right, no topic and none made."""
    try:
        admin.connect()
    except TimeoutError as error:
        if options.guarantee is Guarantee.AT_LEAST_ONCE:
            unless = "; if only the executors can, set option 'driverCheck' to 'false'"
        else:
            unless = ""
        raise TimeoutError(f"{error}. See that Kafka runs there and that the driver can reach it{unless}") from None
    for option, topic in options.topics():
        try:
            admin.partitions_of(topic)
        except UnknownTopicOrPartitionError as error:
            text = f"option '{option}': {error}. Create the topic, or correct its name"
            raise UnknownTopicOrPartitionError(text) from None
        except (InvalidTopicError, TopicAuthorizationError) as error:
            raise type(error)(f"option '{option}': {error}") from None
