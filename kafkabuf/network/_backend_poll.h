/* The back-end on poll(2), a pipe and short sleeps: for every POSIX system. Included by _backend.h, which has the
   contract. Each call of poll costs time in proportion to the connections, which are as many as there are brokers. */
#ifndef KAFKABUF_BACKEND_POLL_H
#define KAFKABUF_BACKEND_POLL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "_waiting.h"

enum { KB_FIRST_POLLED = 16 };

static inline short kb_poll_bits(int interest) {
    return (short)((interest & KB_READABLE ? POLLIN : 0) | (interest & KB_WRITABLE ? POLLOUT : 0));
}

/* The entry of a descriptor; -1: it has none. */
static inline int kb_poll_entry(kb_ready_set *set, int fd) {
    int entry = set->count - 1;
    while (entry >= 0 && set->polled[entry].fd != fd) entry--;
    return entry;
}

static inline int kb_poll_make_room(kb_ready_set *set) {
    int room = set->room ? 2 * set->room : KB_FIRST_POLLED;
    struct pollfd *polled = realloc(set->polled, (size_t)room * sizeof(*polled));
    void **owners;
    if (polled == NULL) return -1;
    set->polled = polled;
    owners = realloc(set->owners, (size_t)room * sizeof(*owners));
    if (owners == NULL) return -1;
    set->owners = owners;
    set->room = room;
    return 0;
}

static inline int kb_poll_add(kb_ready_set *set, int fd, int interest, void *owner) {
    if (set->count == set->room && kb_poll_make_room(set) < 0) {
        errno = ENOMEM;
        return -1;
    }
    set->polled[set->count].fd = fd;
    set->polled[set->count].events = kb_poll_bits(interest);
    set->polled[set->count].revents = 0;
    set->owners[set->count] = owner;
    set->count++;
    return 0;
}

static inline int kb_poll_modify(kb_ready_set *set, int fd, int interest, void *owner) {
    int entry = kb_poll_entry(set, fd);
    if (entry < 0) {
        errno = ENOENT;
        return -1;
    }
    set->polled[entry].events = kb_poll_bits(interest);
    set->owners[entry] = owner;
    return 0;
}

static inline void kb_poll_remove(kb_ready_set *set, int fd) {
    int entry = kb_poll_entry(set, fd);
    if (entry < 0) return;
    set->count--;
    set->polled[entry] = set->polled[set->count];
    set->owners[entry] = set->owners[set->count];
}

/* Not pipe2, which macOS lacks: a child that another thread starts between these calls inherits the pipe. The child
   then holds two descriptors that it never uses. */
static inline int kb_poll_open(kb_ready_set *set) {
    int ends[2], i;
    set->set_fd = set->wake_fd = set->pipe_fd = -1;
    set->count = set->room = set->last = 0;
    set->polled = NULL;
    set->owners = NULL;
    if (pipe(ends) < 0) return -1;
    set->pipe_fd = ends[0];
    set->wake_fd = ends[1];
    for (i = 0; i < 2; i++)
        if (fcntl(ends[i], F_SETFD, FD_CLOEXEC) < 0 || fcntl(ends[i], F_SETFL, O_NONBLOCK) < 0) return -1;
    return kb_poll_add(set, set->pipe_fd, KB_READABLE, NULL);
}

static inline int kb_poll_wait(kb_ready_set *set, kb_event *events, int most, int timeout_ms) {
    char bytes[64];
    int left, reported = 0;
    int ready = poll(set->polled, (nfds_t)set->count, timeout_ms);
    if (ready <= 0) return ready;
    if (set->polled[0].revents) {
        ready--;
        if (read(set->pipe_fd, bytes, sizeof(bytes)) < 0) {
            /* The pipe is empty already. */
        }
    }
    /* It goes round, from behind the entry that was reported last: where more than `most` connections are always ready,
       all of them have their turn. */
    for (left = set->count - 1; left > 0 && ready > 0 && reported < most; left--) {
        short bits;
        set->last = set->last + 1 < set->count ? set->last + 1 : 1;
        bits = set->polled[set->last].revents;
        if (bits == 0) continue;
        ready--;
        events[reported].owner = set->owners[set->last];
        events[reported].ready = (bits & POLLIN ? KB_READABLE : 0) | (bits & POLLOUT ? KB_WRITABLE : 0) |
                                 (bits & (POLLERR | POLLHUP | POLLNVAL) ? KB_BROKEN : 0);
        reported++;
    }
    return reported;
}

static inline void kb_poll_wake(kb_ready_set *set) {
    if (write(set->wake_fd, "", 1) < 0) {
        /* The pipe is full, so it is readable and the owner wakes. */
    }
}

static inline void kb_poll_close(kb_ready_set *set) {
    if (set->wake_fd >= 0) close(set->wake_fd);
    if (set->pipe_fd >= 0) close(set->pipe_fd);
    set->wake_fd = set->pipe_fd = -1;
    free(set->polled);
    free(set->owners);
    set->polled = NULL;
    set->owners = NULL;
}

static const kb_backend kb_poll = {
    "poll",       kb_poll_open, kb_poll_add,   kb_poll_modify,      kb_poll_remove,
    kb_poll_wait, kb_poll_wake, kb_poll_close, kb_nap_until_change, kb_wake_nobody,
};

#endif
