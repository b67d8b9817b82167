# cython: language_level=3
"""Rings of links that lie within other structs: lists that allocate nothing, and that a link leaves in O(1).

A ring has a head: a separate link, which points at itself while the ring is empty. The owner of a ring says what guards
it.
"""


cdef struct Link:
    Link* next      # NULL: in no ring
    Link* prev


cdef inline void open_ring(Link* head) noexcept nogil:
    head.next = head.prev = head


cdef inline bint is_empty(Link* head) noexcept nogil:
    return head.next == head


# Links it at the end of the ring if `place` is the head.
cdef inline void link_before(Link* place, Link* link) noexcept nogil:
    link.next = place
    link.prev = place.prev
    place.prev.next = link
    place.prev = link


cdef inline void link_after(Link* place, Link* link) noexcept nogil:
    link_before(place.next, link)


cdef inline void unlink(Link* link) noexcept nogil:
    link.prev.next = link.next
    link.next.prev = link.prev
    link.next = link.prev = NULL
