/* Which sockets are ready: the contract of a back-end (_backend.pxd explains it), and the list of back-ends. */
#ifndef KAFKABUF_BACKEND_H
#define KAFKABUF_BACKEND_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#include "../process/_platform.h"

enum { KB_READABLE = 1, KB_WRITABLE = 2, KB_BROKEN = 4 };

typedef struct {
    void *owner;
    int ready;
} kb_event;

/* The back-end on epoll uses set_fd and wake_fd, the back-end on poll(2) the other fields and wake_fd. */
typedef struct {
    int set_fd;
    int wake_fd;            /* a write to it ends the wait */
    int pipe_fd;            /* the read end of the pipe of which wake_fd is the write end */
    int count;              /* entries of `polled` in use */
    int room;               /* entries that fit */
    int last;               /* the entry that the last wait reported last */
    struct pollfd *polled;  /* entry 0 is pipe_fd */
    void **owners;          /* of the entries */
} kb_ready_set;

typedef struct {
    const char *name;
    int (*open)(kb_ready_set *);
    int (*add)(kb_ready_set *, int fd, int interest, void *owner);
    int (*modify)(kb_ready_set *, int fd, int interest, void *owner);
    void (*remove)(kb_ready_set *, int fd);
    int (*wait)(kb_ready_set *, kb_event *events, int most, int timeout_ms);
    void (*wake)(kb_ready_set *);
    void (*close)(kb_ready_set *);
    void (*wait_for_change)(uint32_t *counter, uint32_t seen, uint32_t microseconds);
    void (*wake_waiters)(uint32_t *counter);
} kb_backend;

#include "_backend_poll.h"
#if KB_LINUX
#include "_backend_epoll.h"
#endif

/* Back-end number `index`, the best of the platform first; NULL: there are no more. */
static inline const kb_backend *kb_backend_at(int index) {
    static const kb_backend *const backends[] = {
#if KB_LINUX
        &kb_epoll,
#endif
        &kb_poll,
    };
    return index < (int)(sizeof(backends) / sizeof(*backends)) ? backends[index] : NULL;
}

#endif
