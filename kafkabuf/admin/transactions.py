"""The Admin requests of an operator: which groups and transactions there are, what holds back readers, how to end both.

`kafkabuf spark` makes them (cli/spark/command.py). The docstrings give the names of the methods in Kafka's Admin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkabuf.admin.admin import OFFSET_FETCH_VERSIONS, Admin, group_in, offset_in
from kafkabuf.errors import KafkaError, NetworkError, error_for_code
from kafkabuf.protocol import messages
from kafkabuf.transactions.groups import Coordinator, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

_LATEST = -1
_BROKER = 4  # the type of a resource whose settings DescribeConfigs returns
# Version 2 is the first with isolation levels. Version 8 brings nothing that is needed here.
_LIST_OFFSETS_VERSIONS = range(2, 8)


@dataclass(frozen=True)
class ListedTransaction:
    """One transactional id that a coordinator knows. `state` is Kafka's."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionAdmin(Admin):
    """`Admin` with the calls of an operator. It creates no topic."""

    def __init__(self, config: ProducerConfig) -> None:
        super().__init__(config)
        self._transaction_timeout_ms = config.transaction_timeout_ms

    # ---- what the cluster has ----------------------------------------------------------------------------------------

    def groups(self, prefix: str) -> list[str]:
        """Admin.listGroups: the groups whose names begin with `prefix`.

        Brokers leave out what this user may not see.
        """
        responses = self._ask_all_brokers(messages.LIST_GROUPS, range(6), {})
        names = {str(group.group_id) for response in responses for group in response.groups}
        return sorted(name for name in names if name.startswith(prefix))

    def transactions(self, prefix: str = "", producer_ids: Collection[int] = ()) -> list[ListedTransaction]:
        """Admin.listTransactions: the transactional ids that begin with `prefix`, of these producers (empty: of all).

        Brokers leave out what this user may not see.
        """
        responses = self._ask_all_brokers(
            messages.LIST_TRANSACTIONS, range(2), {"producer_id_filters": sorted(producer_ids), "duration_filter": -1}
        )
        listed = {
            str(transaction.transactional_id): ListedTransaction(
                str(transaction.transactional_id), int(transaction.producer_id), str(transaction.transaction_state)
            )
            for response in responses
            for transaction in response.transaction_states
        }
        return [listed[name] for name in sorted(listed) if name.startswith(prefix)]

    def offsets_of(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Admin.listConsumerGroupOffsets: every committed offset of a group, without those of open transactions."""
        response = self._ask_coordinator(
            Coordinator.GROUP,
            group,
            messages.OFFSET_FETCH,
            OFFSET_FETCH_VERSIONS,
            lambda reply: [int(group_in(reply).error_code)],
            {"group_id": group, "topics": None, "groups": [{"group_id": group, "topics": None}]},
        )
        return {
            (str(topic.name), int(partition.partition_index)): offset
            for topic in group_in(response).topics
            for partition in topic.partitions
            if (offset := offset_in(partition)) is not None
        }

    def partitions_by_topic(self, topics: Collection[str]) -> dict[str, int | KafkaError]:
        """Admin.describeTopics: the number of partitions of each topic, or why it is not known."""
        if not topics:
            return {}
        response = self._ask(
            self._any_broker,
            messages.METADATA,
            range(4, 13),
            lambda reply: (),
            {"topics": [{"name": topic} for topic in sorted(topics)], "allow_auto_topic_creation": False},
            self._deadline(),
        )
        return {
            str(topic.name): error_for_code(int(topic.error_code)) if topic.error_code else len(topic.partitions)
            for topic in response.topics
        }

    def end_offsets(self, partitions: Collection[TopicPartition], *, committed: bool) -> dict[TopicPartition, int]:
        """Admin.listOffsets: the high watermarks, or with `committed` the last stable offsets."""

        def values(led: Mapping[str, list[int]]) -> dict[str, Any]:
            topics = [{"name": name, "partitions": list(map(_latest, numbers))} for name, numbers in led.items()]
            return {"replica_id": -1, "isolation_level": int(committed), "topics": topics}

        answers = self._from_leaders(partitions, messages.LIST_OFFSETS, _LIST_OFFSETS_VERSIONS, values)
        return {partition: int(answer.offset) for partition, answer in answers.items()}

    def broker_setting(self, name: str) -> str | None:
        """Admin.describeConfigs: a setting of one broker; None if the broker does not list it."""
        node_id = min(self._brokers())
        return self._configs(partial(int, node_id), _BROKER, str(node_id), [name]).get(name)

    # ---- what changes the cluster ------------------------------------------------------------------------------------

    def fence(self, transactional_id: str) -> tuple[int, int]:
        """Admin.fenceProducers: abort the open transaction and fence its producer. Returns producer id and epoch.

        The call returns when the transaction has ended in every partition.
        """
        response = self._ask_coordinator(
            Coordinator.TRANSACTION,
            transactional_id,
            messages.INIT_PRODUCER_ID,
            range(6),
            lambda reply: [int(reply.error_code)],
            {
                "transactional_id": transactional_id,
                "transaction_timeout": self._transaction_timeout_ms,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        )
        return int(response.producer_id), int(response.producer_epoch)

    def delete_group(self, group: str) -> None:
        """Admin.deleteConsumerGroups: delete a group without members, with its offsets."""
        self._ask_coordinator(
            Coordinator.GROUP,
            group,
            messages.DELETE_GROUPS,
            range(3),
            lambda reply: [int(result.error_code) for result in reply.results],
            {"groups_names": [group]},
        )

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._timeout

    def _brokers(self) -> set[int]:
        """The brokers that the cluster has now: metadata of some minutes ago may lack a broker that has come back."""
        deadline, asked_at = self._deadline(), self._clock.monotonic()
        self._metadata.request_update()
        while self._metadata.updated_at < asked_at:
            if self._clock.monotonic() >= deadline:
                raise self._timed_out("a broker")
            self._pump(deadline)
        return set(self._metadata.snapshot.brokers)

    def _ask_all_brokers(self, api_key: int, versions: range, values: dict[str, Any]) -> list[Any]:
        """The responses of all brokers.

        If a broker comes or goes meanwhile, groups and transactions move to brokers that have responded already: then
        the call starts over.
        """
        brokers = self._brokers()
        while True:
            responses = []
            try:
                for node_id in sorted(brokers):
                    ask = partial(self._ask, partial(int, node_id), api_key, versions, _code_of)
                    responses.append(ask(values, self._deadline()))
            except NetworkError:
                before, brokers = brokers, self._brokers()
                if before == brokers:
                    raise
                continue
            before, brokers = brokers, self._brokers()
            if before == brokers:
                return responses


def _code_of(reply: Any) -> list[int]:
    return [int(reply.error_code)]


def _latest(partition: int) -> dict[str, int]:
    return {"partition_index": partition, "current_leader_epoch": -1, "timestamp": _LATEST}
