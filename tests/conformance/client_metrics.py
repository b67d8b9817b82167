"""Steps of script.py: the metrics of clients. Kafka without a receiver answers what it does not list."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafkabuf.protocol import messages as m
from tests.conformance.script import Conversation, step

_LARGEST = 1024 * 1024


@step(m.GET_TELEMETRY_SUBSCRIPTIONS)
def subscribes(talk: Conversation, version: int) -> None:
    known = talk.ask("a new client", client_instance_id=None).client_instance_id
    talk.ask("it asks again", client_instance_id=known)
    talk.ask("the id of none", client_instance_id=UUID(int=0))
    talk.ask("an id of the client's", client_instance_id=UUID(int=3))
    talk.ask("it asks again with that", client_instance_id=UUID(int=3))


@step(m.PUSH_TELEMETRY)
def pushes(talk: Conversation, version: int) -> None:
    def subscription() -> tuple[UUID, int]:
        answer = talk.do(m.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=None)
        return answer.client_instance_id, answer.subscription_id

    def push(label: str, client: UUID | None, subscription_id: int, **more: Any) -> None:
        values = {"terminating": False, "compression_type": 0, "metrics": b"", **more}
        talk.ask(label, client_instance_id=client, subscription_id=subscription_id, **values)

    for label, client in (("no id", None), ("the id of none", UUID(int=0)), ("a reserved id", UUID(int=1))):
        push(label, client, 1)
    push("a client that never asked", UUID(int=77), 1)
    client, number = subscription()
    push("another subscription", client, number ^ 1)
    talk.record("asks after that", talk.do(m.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=client))
    push("an unknown codec", client, number, compression_type=9)
    talk.record("asks after that, too", talk.do(m.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=client))
    push("as it should be", client, number, compression_type=4, metrics=b"anything")
    push("too early", client, number)
    push("too early for the last one", client, number, terminating=True)
    push("after the last one", client, number, terminating=True)
    client, number = subscription()
    push("the largest", client, number, metrics=bytes(_LARGEST))
    client, number = subscription()
    push("larger", client, number, metrics=bytes(_LARGEST + 1))
    client, number = subscription()
    push("the last one is refused", client, number ^ 1, terminating=True)
    push("after a refused last one", client, number)
