/* What differs between the platforms. No other file asks for which system it is compiled: the others use these names.

   KB_LINUX        1: there are epoll, eventfd and futexes; 0: only what every POSIX system has. Compiled with
                   -DKB_PORTABLE a build for Linux is what a build for another system is (`make test-portable`).
   KB_SEND_FLAGS   the flags of sendmsg: do not wait, and no SIGPIPE if the peer has closed the connection
   kb_no_sigpipe   the same for systems where not the call but the socket has the flag (macOS); call it once a socket
   kb_monotonic    the seconds of time.monotonic(), whose clock on macOS stands while the machine sleeps
   KB_ARM_CRC      defined if an aarch64 CPU may have instructions for CRCs: the attribute of functions that use them.
                   kb_has_arm_crc() finds at run time whether this CPU has them, KB_ARM_CRC32* are the instructions
                   (CRC-32C, or with the polynomial of CRC-32; of eight bytes, or of one)

   macOS was not available, so these have not run anywhere: SO_NOSIGPIPE; poll(2) of macOS after a refused or reset
   connection; pipes under /dev/fd (network/tls/context.py) and the output of `ps` (spark/worker/scratch.py) on macOS;
   the CRC instructions of Apple's CPUs. Windows has none of these calls: setup.py refuses it. */
#ifndef KAFKABUF_PLATFORM_H
#define KAFKABUF_PLATFORM_H

#include <sys/socket.h>
#include <time.h>

#if defined(__linux__) && !defined(KB_PORTABLE)
#define KB_LINUX 1
#else
#define KB_LINUX 0
#endif

#ifdef MSG_NOSIGNAL
#define KB_SEND_FLAGS (MSG_DONTWAIT | MSG_NOSIGNAL)
#else
#define KB_SEND_FLAGS MSG_DONTWAIT
#endif

static inline void kb_no_sigpipe(int fd) {
#ifdef SO_NOSIGPIPE
    /* It fails on a connection that the peer has reset. The poll call finds the same out. */
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#else
    (void)fd;
#endif
}

#if defined(__APPLE__)
#define KB_MONOTONIC CLOCK_UPTIME_RAW
#else
#define KB_MONOTONIC CLOCK_MONOTONIC
#endif

static inline double kb_monotonic(void) {
    struct timespec now;
    clock_gettime(KB_MONOTONIC, &now);
    return (double)((long long)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9; /* rounded as Python rounds it */
}

#if defined(__aarch64__)
#if defined(__ARM_FEATURE_CRC32)
/* The compiler may use the instructions anywhere: every Mac with an ARM processor has them. */
#define KB_ARM_CRC
static inline int kb_has_arm_crc(void) { return 1; }
#elif defined(__linux__)
#include <sys/auxv.h>
#if defined(__clang__)
#define KB_ARM_CRC __attribute__((target("crc")))
#else
#define KB_ARM_CRC __attribute__((target("+crc")))
#endif
static inline int kb_has_arm_crc(void) { return (getauxval(AT_HWCAP) & 1UL << 7) != 0; } /* HWCAP_CRC32 */
#endif

#if defined(__clang__)
#define KB_ARM_CRC32C_U64 __builtin_arm_crc32cd
#define KB_ARM_CRC32C_U8 __builtin_arm_crc32cb
#define KB_ARM_CRC32_U64 __builtin_arm_crc32d
#define KB_ARM_CRC32_U8 __builtin_arm_crc32b
#else
#define KB_ARM_CRC32C_U64 __builtin_aarch64_crc32cx
#define KB_ARM_CRC32C_U8 __builtin_aarch64_crc32cb
#define KB_ARM_CRC32_U64 __builtin_aarch64_crc32x
#define KB_ARM_CRC32_U8 __builtin_aarch64_crc32b
#endif
#endif

#endif
