"""How much a broker is believed to have to say: it may be broken, or none."""

from __future__ import annotations

from typing import Any

from kafkabuf.protocol import messages

KIB, MIB = 1024, 1024 * 1024

# Before a broker has let us in.
LARGEST_EARLY_ANSWER = 512 * KIB
# Brokers have some 100 bytes in a Metadata answer, partitions with three replicas some 45: this is room for 10,000
# brokers, and 90,000 partitions of each topic that was asked for.
METADATA_OF_BROKERS, METADATA_OF_A_TOPIC, LARGEST_METADATA = 1 * MIB, 4 * MIB, 32 * MIB
# Nearly all else names what the request named, with an error code and perhaps words for each.
SMALL_ANSWER, ANSWER_TO_A_BYTE = 64 * KIB, 16
# These do not: how many offsets, producers or partitions there are is the cluster's to say.
LARGE_ANSWERS = {messages.OFFSET_FETCH, messages.DESCRIBE_PRODUCERS, messages.DESCRIBE_TRANSACTIONS}
LARGEST_ANSWER = 32 * MIB
# What nobody asked for is let in so that it can be named.
LARGEST_STRAY = 64 * KIB
# Longer answers are decoded beside the thread of the network, which has others to serve meanwhile, and may be told to
# end: Python objects of a megabyte take a fifth of a second.
LARGEST_DECODED_AT_ONCE = 256 * KIB


def largest_answer(entity: Any, size: int) -> int:
    """Bytes that the answer to a request may have, which itself has `size`; Produce has a bound of its own."""
    match entity.__api_key__:
        case messages.API_VERSIONS | messages.SASL_HANDSHAKE | messages.SASL_AUTHENTICATE:
            return LARGEST_EARLY_ANSWER
        case messages.METADATA:
            return min(METADATA_OF_BROKERS + METADATA_OF_A_TOPIC * len(entity.topics or ()), LARGEST_METADATA)
        case api_key if api_key in LARGE_ANSWERS:
            return LARGEST_ANSWER
        case _:
            return SMALL_ANSWER + ANSWER_TO_A_BYTE * size
