"""Connections to brokers: framing, requests in flight, time-outs, reconnects. All of it is the Sender thread's."""
