"""Connections to brokers: framing, in-flight requests, time-outs, reconnects. All of it belongs to the Sender thread."""
