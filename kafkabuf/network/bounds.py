"""The largest response that the client accepts to each request. A peer may be faulty, or may not be a broker."""

from __future__ import annotations

from typing import Any

from kafkabuf.protocol import messages

KIB, MIB = 1024, 1024 * 1024

# For the responses that a broker sends before it has authenticated this client.
LARGEST_EARLY_RESPONSE = 512 * KIB
# In a Metadata response a broker takes about 100 bytes, and a partition with three replicas about 45. These limits have
# room for 10,000 brokers, and for 90,000 partitions of each topic in the request.
METADATA_OF_BROKERS, METADATA_OF_A_TOPIC, LARGEST_METADATA = 1 * MIB, 4 * MIB, 32 * MIB
# Nearly all other responses repeat what the request names, each with an error code and perhaps a message.
SMALL_RESPONSE, RESPONSE_TO_A_BYTE = 64 * KIB, 16
# Responses that name more than their request: the cluster determines how many groups, offsets, producers, transactions
# or partitions.
LARGE_RESPONSES = {
    messages.OFFSET_FETCH,
    messages.LIST_GROUPS,
    messages.DESCRIBE_PRODUCERS,
    messages.DESCRIBE_TRANSACTIONS,
    messages.LIST_TRANSACTIONS,
}
LARGEST_RESPONSE = 32 * MIB
# A subscription names metrics by their beginnings.
LARGEST_SUBSCRIPTION = 1 * MIB
# A broker returns the first batch even if it is larger than the request allows (KIP-74).
LARGEST_BATCH = 256 * MIB
# A frame without a request is read up to this size, so that the error can name its correlation id.
LARGEST_STRAY = 64 * KIB
# Another thread decodes longer responses: to make Python objects of a megabyte takes 0.2 s. The Sender's thread serves
# other connections meanwhile, and can be closed.
LARGEST_DECODED_AT_ONCE = 256 * KIB


def largest_response(entity: Any, size: int) -> int:
    """How many bytes the response to a request of `size` bytes may have. Produce has a bound of its own."""
    match entity.__api_key__:
        case messages.API_VERSIONS | messages.SASL_HANDSHAKE | messages.SASL_AUTHENTICATE:
            return LARGEST_EARLY_RESPONSE
        case messages.METADATA:
            return min(METADATA_OF_BROKERS + METADATA_OF_A_TOPIC * len(entity.topics or ()), LARGEST_METADATA)
        case messages.FETCH:
            return int(entity.max_bytes) + LARGEST_BATCH
        case messages.GET_TELEMETRY_SUBSCRIPTIONS:
            return LARGEST_SUBSCRIPTION
        case api_key if api_key in LARGE_RESPONSES:
            return LARGEST_RESPONSE
        case _:
            return SMALL_RESPONSE + RESPONSE_TO_A_BYTE * size
