"""What the driver checks before Spark makes the tasks: the brokers answer, and the topics of the options exist.

A task that finds a broker or a topic missing waits max.block.ms, and Spark tries the task spark.task.maxFailures times.
The driver asks once, and its error names the option to correct. It checks when Spark pickles the writer (writer.py).
"""

from __future__ import annotations

from kafkabuf.admin.admin import Admin
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import (
    ConfigError,
    InvalidTopicError,
    TimeoutError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.worker import limits
from kafkabuf.spark.worker.limits import TopicLimits

# Options whose check has passed in this Python worker of the driver: a stream checks before its first micro-batch only.
_passed: set[SinkOptions] = set()


def check(options: SinkOptions, *, repeat: bool) -> None:
    """Check the cluster with one or two requests, unless `driverCheck` is false. Raises what `check_cluster` raises.

    `repeat`: check again where the same options have passed before.
    """
    if not options.driver_check or (options in _passed and not repeat):
        return
    with Admin(ProducerConfig.from_mapping(dict(options.producer))) as admin:
        check_cluster(admin, options)
    _passed.add(options)


def read_limits(options: SinkOptions) -> TopicLimits | None:
    """The limits of the topic, read again for each write and micro-batch: a limit may change while a stream runs."""
    from kafkabuf.spark.worker.workers import lent_admin

    with lent_admin(options.producer) as admin:
        return limits.read(admin, options)


def check_in_task(options: SinkOptions) -> None:
    """Check the topic of aligned rows once in a worker, where the driver checks nothing."""
    if not options.driver_check and options not in _passed:
        with Admin(ProducerConfig.from_mapping(dict(options.producer))) as admin:
            _check_topics(admin, options)
        _passed.add(options)


def check_cluster(admin: Admin, options: SinkOptions) -> None:
    """Raise the first error: no broker answers, the broker denies access, a topic is missing and was not created, or
    has another number of partitions than align() got.

    An error that might pass is raised after max.block.ms, any other at once.
    """
    try:
        admin.connect()
    except TimeoutError as error:
        hint = ""
        if not options.guarantee.is_transactional:
            hint = "; if only the executors can, set option 'driverCheck' to 'false'"
        raise TimeoutError(f"{error}. See that Kafka runs there and that the driver can reach it{hint}") from None
    _check_topics(admin, options)


def _check_topics(admin: Admin, options: SinkOptions) -> None:
    for option, topic in options.topics():
        try:
            partitions = admin.partitions_of(topic)
        except UnknownTopicOrPartitionError as error:
            text = f"option '{option}': {error}. Create the topic, or correct its name"
            raise UnknownTopicOrPartitionError(text) from None
        except (InvalidTopicError, TopicAuthorizationError) as error:
            raise type(error)(f"option '{option}': {error}") from None
        if option == "topic" and options.aligned not in (None, partitions):
            raise ConfigError(
                f"align() got {options.aligned} partitions, but topic '{topic}' has {partitions}: its keys would "
                f"go to other partitions than those of other producers. Call align(df, {partitions})"
            )
