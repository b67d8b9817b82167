# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=True
"""A request, its entry in the in-flight table, and its completion."""

cimport cython

from kafkabuf.errors import CorruptMessageError
from kafkabuf.protocol import messages


@cython.final
cdef class Request:
    """A request that has no correlation id yet. `build` makes the frame when the client has chosen the id.

    `context` belongs to the caller. `timeout`, in seconds, replaces `request.timeout.ms`. With `expects_response` False
    (acks=0) the request is complete once it is written.
    """

    def __init__(self, int api_key, int version, build, context=None, bint expects_response=True, timeout=None):
        self.api_key = api_key
        self.version = version
        self.build = build
        self.context = context
        self.expects_response = expects_response
        self.timeout = timeout


@cython.final
cdef class Completion:
    """The end of a request: its response or its error. No socket reads the spans of the request's frame any more."""

    def __init__(self, Request request not None, int node_id, response, error, double latency, bint never_left=False):
        self.request = request
        self.node_id = node_id
        self.response = response
        self.error = error
        self.latency = latency
        self.never_left = never_left

    def decode(self):
        """The response as a kio entity. Raises `error` if it is set, CorruptMessageError for malformed bytes."""
        if self.error is not None:
            raise self.error
        if self.entity is None:
            self.entity = messages.decode_response(self.request.api_key, self.request.version, self.response)[1]
        return self.entity


cdef Request new_request(int api_key, int version, object build, object context, bint expects_response):
    cdef Request request = Request.__new__(Request)
    request.api_key = api_key
    request.version = version
    request.build = build
    request.context = context
    request.expects_response = expects_response
    return request


cdef Completion new_completion(InFlight entry, int node_id, object response, object error, double latency,
                               bint never_left):
    cdef Completion completion = Completion.__new__(Completion)
    completion.request = entry.request
    completion.node_id = node_id
    completion.response = response
    completion.error = error
    completion.latency = latency
    completion.never_left = never_left
    return completion


@cython.final
cdef class InFlight:
    """A request that is queued on a connection or sent. The Sender's thread delivers its Completion once."""


def decoded(Request request, bytes frame):
    """Any thread: the response as a kio entity. Raises CorruptMessageError for malformed bytes."""
    entity = messages.decode_response(request.api_key, request.version, frame)[1]
    throttle_ms_of(entity)
    return entity


cdef int throttle_ms_of(object entity) except -2:
    pause = getattr(entity, "throttle_time", None)
    if pause is None:
        return -1
    milliseconds = round(pause.total_seconds() * 1000)
    if milliseconds < 0:
        raise CorruptMessageError(f"{type(entity).__name__} asks for a pause of {milliseconds} ms")
    return milliseconds
