"""Kafka's messages, which client and broker share, and the frames that carry them.

The few hot messages have hand-written codecs, the other messages of our clients have tables. The schemas of `kio` are
for all others, which only the broker needs. Client and broker share it. It depends on neither.
"""
