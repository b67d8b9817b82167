"""Parked requests and timers: the purgatory, the timing wheels, and what drives them."""
