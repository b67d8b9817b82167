/* Which pages the system keeps for a block of memory.
 *
 * Huge pages mean fewer page faults and fewer misses of the TLB. Linux gives them only to a block that asks, if transparent_hugepage is "madvise". A byte that is written then brings
 * a page of 2 MiB, so a small block does not ask.
 */
#ifndef KB_PAGES_H
#define KB_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define KB_SMALL_PAGE ((size_t)4096)
#define KB_WORTH_HUGE_PAGES ((size_t)4 << 20)

static inline void kb_prefer_huge_pages(unsigned char *memory, size_t size)
{
#ifdef MADV_HUGEPAGE
    size_t before = (KB_SMALL_PAGE - (uintptr_t)memory % KB_SMALL_PAGE) % KB_SMALL_PAGE;
    if (size >= KB_WORTH_HUGE_PAGES)
        (void)madvise(memory + before, size - before, MADV_HUGEPAGE); /* only a wish: an error changes nothing */
#else
    (void)memory;
    (void)size;
#endif
}

/* The bytes stay in the system's cache of the file, and each page comes back at its next use. `memory` is the beginning
 * of a shared mapping of a file: private memory would lose its bytes.
 */
static inline void kb_forget_pages(unsigned char *memory, size_t size)
{
    (void)madvise(memory, size, MADV_DONTNEED);
}

#endif
