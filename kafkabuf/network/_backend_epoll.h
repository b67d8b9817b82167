/* The back-end on epoll, an eventfd and futexes: Linux's. Included by _backend.h, which has the contract. */
#ifndef KAFKABUF_BACKEND_EPOLL_H
#define KAFKABUF_BACKEND_EPOLL_H

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "_waiting.h"

enum { KB_MOST_EPOLL_EVENTS = 64 }; /* in one epoll_wait; the next call reports the others, the kernel goes round */

static inline int kb_epoll_control(kb_ready_set *set, int operation, int fd, int interest, void *owner) {
    struct epoll_event event = {0, {owner}};
    event.events = (interest & KB_READABLE ? EPOLLIN : 0u) | (interest & KB_WRITABLE ? EPOLLOUT : 0u);
    return epoll_ctl(set->set_fd, operation, fd, &event);
}

static inline int kb_epoll_add(kb_ready_set *set, int fd, int interest, void *owner) {
    return kb_epoll_control(set, EPOLL_CTL_ADD, fd, interest, owner);
}

static inline int kb_epoll_modify(kb_ready_set *set, int fd, int interest, void *owner) {
    return kb_epoll_control(set, EPOLL_CTL_MOD, fd, interest, owner);
}

static inline void kb_epoll_remove(kb_ready_set *set, int fd) { kb_epoll_control(set, EPOLL_CTL_DEL, fd, 0, NULL); }

static inline int kb_epoll_open(kb_ready_set *set) {
    struct epoll_event edge = {EPOLLIN | EPOLLET, {NULL}};
    set->wake_fd = -1;
    set->set_fd = epoll_create1(EPOLL_CLOEXEC);
    if (set->set_fd < 0) return -1;
    set->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (set->wake_fd < 0) return -1;
    /* An edge, not a level: each write ends one wait, and nobody reads the counter. 2^64 writes fill it. */
    return epoll_ctl(set->set_fd, EPOLL_CTL_ADD, set->wake_fd, &edge);
}

static inline int kb_epoll_wait(kb_ready_set *set, kb_event *events, int most, int timeout_ms) {
    struct epoll_event found[KB_MOST_EPOLL_EVENTS];
    int i, reported = 0;
    int count = epoll_wait(set->set_fd, found, most < KB_MOST_EPOLL_EVENTS ? most : KB_MOST_EPOLL_EVENTS, timeout_ms);
    if (count < 0) return -1;
    for (i = 0; i < count; i++) {
        uint32_t bits = found[i].events;
        if (found[i].data.ptr == NULL) continue; /* the eventfd */
        events[reported].owner = found[i].data.ptr;
        events[reported].ready = (bits & EPOLLIN ? KB_READABLE : 0) | (bits & EPOLLOUT ? KB_WRITABLE : 0) |
                                 (bits & (EPOLLERR | EPOLLHUP) ? KB_BROKEN : 0);
        reported++;
    }
    return reported;
}

static inline void kb_epoll_wake(kb_ready_set *set) {
    uint64_t one = 1;
    if (write(set->wake_fd, &one, sizeof(one)) < 0) {
        /* EAGAIN is the only error there is: the counter is full, after 2^64 writes. */
    }
}

static inline void kb_epoll_close(kb_ready_set *set) {
    if (set->wake_fd >= 0) close(set->wake_fd);
    if (set->set_fd >= 0) close(set->set_fd);
    set->wake_fd = set->set_fd = -1;
}

static const kb_backend kb_epoll = {
    "epoll",       kb_epoll_open, kb_epoll_add,   kb_epoll_modify, kb_epoll_remove,
    kb_epoll_wait, kb_epoll_wake, kb_epoll_close, kb_futex_wait,   kb_futex_wake,
};

#endif
