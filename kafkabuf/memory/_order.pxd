# cython: language_level=3
"""The order of stores to memory that may outlive the process (_order.h)."""


cdef extern from "memory/_order.h" nogil:
    # What is written before is stored before all that is written after.
    void kb_in_order()
