"""Connections to brokers: frames, requests in flight, time-outs, reconnects. The Sender's thread owns all of it."""
