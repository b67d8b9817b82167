/* CRC-32 (ISO-HDLC, zlib's), over each message of magic 1: by carry-less multiplication on x86-64, by the CPU's own
 * instruction on aarch64, by table elsewhere.
 *
 * Folding (Gopal et al., Intel 2009): 16 bytes are a polynomial, multiplied by the power of x that the length of the
 * rest of the input determines. Multiplying the two halves of the 16 bytes by that power modulo P gives 16 other bytes
 * at a later position with the same remainder. Folding repeats this until 16 bytes are left, without a table.
 */
#ifndef KAFKABUF_CRC32_H
#define KAFKABUF_CRC32_H

#include "_crc.h"

#define KB_POLY_CRC32 0xEDB88320u

static uint32_t kb_crc32_table[8][256];
static int kb_crc32_by_instruction;

#if defined(__x86_64__)
#include <smmintrin.h>
#include <wmmintrin.h>
#define KB_CRC32_TARGET __attribute__((target("pclmul,sse4.1")))
#define KB_CRC32_TAKES(n) ((n) >= 16)

/* By distance in blocks of 16 bytes: the factors of a block's first and second half. Index 0 is unused. */
static uint64_t kb_crc32_fold[5][2];
static uint64_t kb_crc32_x64;
static uint64_t kb_crc32_barrett[2]; /* P, and x^64 / P */

/* The shuffle mask at index `at` moves a block's bytes to the block's end (at < 16) or front (at > 16); zeroes fill the
 * rest. */
static const uint8_t kb_slide[48] __attribute__((aligned(16))) = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};

/* The product of two reflected polynomials lies one bit low, hence the factors' shift. */
static inline uint64_t kb_crc32_factor(int power) {
    return (uint64_t)kb_power_of_x(KB_POLY_CRC32, power) << 1;
}

static inline void kb_crc32_init_folding(void) {
    for (int blocks = 1; blocks <= 4; blocks++) {
        kb_crc32_fold[blocks][0] = kb_crc32_factor(128 * blocks + 32);
        kb_crc32_fold[blocks][1] = kb_crc32_factor(128 * blocks - 32);
    }
    /* Long division of x^64 by P, coefficient by coefficient; both reflected over 33 bits. */
    uint64_t poly = ((uint64_t)KB_POLY_CRC32 << 1) | 1;
    uint32_t rest = KB_POLY_CRC32; /* x^32 modulo P */
    uint64_t quotient = 1;
    for (int i = 1; i <= 32; i++) {
        quotient |= (uint64_t)(rest & 1) << i;
        rest = (rest >> 1) ^ (KB_POLY_CRC32 & (0u - (rest & 1u)));
    }
    kb_crc32_x64 = kb_crc32_factor(64);
    kb_crc32_barrett[0] = poly;
    kb_crc32_barrett[1] = quotient;
    kb_crc32_by_instruction = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

KB_CRC32_TARGET static inline __m128i kb_load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

/* The 16 bytes `a`, folded onto the position `blocks` blocks later. */
KB_CRC32_TARGET static inline __m128i kb_fold(__m128i a, int blocks) {
    __m128i factors = kb_load128(kb_crc32_fold[blocks]);
    return _mm_xor_si128(_mm_clmulepi64_si128(a, factors, 0x00), _mm_clmulepi64_si128(a, factors, 0x11));
}

/* The remainder of the last 16 bytes: 128 bits to 96, to 64, and those by Barrett's two multiplications. */
KB_CRC32_TARGET static inline uint32_t kb_crc32_reduce(__m128i a) {
    const __m128i low32 = _mm_set_epi32(0, 0, 0, -1);
    const __m128i barrett = kb_load128(kb_crc32_barrett);
    __m128i b;
    a = _mm_xor_si128(_mm_clmulepi64_si128(kb_load128(kb_crc32_fold[1]), a, 0x01), _mm_srli_si128(a, 8));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low32), _mm_cvtsi64_si128((long long)kb_crc32_x64), 0x00);
    a = _mm_xor_si128(_mm_srli_si128(a, 4), b);
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low32), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

KB_CRC32_TARGET static inline uint32_t kb_crc32_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    __m128i a = _mm_xor_si128(kb_load128(p), _mm_cvtsi32_si128((int)~crc));
    if (n >= 64) {
        __m128i b = kb_load128(p + 16), c = kb_load128(p + 32), d = kb_load128(p + 48);
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            a = _mm_xor_si128(kb_fold(a, 4), kb_load128(p));
            b = _mm_xor_si128(kb_fold(b, 4), kb_load128(p + 16));
            c = _mm_xor_si128(kb_fold(c, 4), kb_load128(p + 32));
            d = _mm_xor_si128(kb_fold(d, 4), kb_load128(p + 48));
        }
        a = _mm_xor_si128(_mm_xor_si128(kb_fold(a, 3), kb_fold(b, 2)), _mm_xor_si128(kb_fold(c, 1), d));
    } else {
        p += 16;
        n -= 16;
    }
    for (; n >= 16; p += 16, n -= 16) a = _mm_xor_si128(kb_fold(a, 1), kb_load128(p));
    /* n bytes are left. The first n bytes of `a` fold onto the 16 bytes that follow them: the other bytes of `a`, then
     * the last n bytes of the input. */
    __m128i to_front = kb_load128(kb_slide + 16 + n);
    __m128i first = _mm_shuffle_epi8(a, kb_load128(kb_slide + n));
    __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(a, to_front), kb_load128(p + n - 16), to_front);
    return ~kb_crc32_reduce(_mm_xor_si128(kb_fold(first, 1), last));
}

#elif defined(KB_ARM_CRC)
#define KB_CRC32_TARGET KB_ARM_CRC
#define KB_CRC32_TAKES(n) 1

KB_CRC32_TARGET static inline uint32_t kb_crc32_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = KB_ARM_CRC32_U64(crc, word);
    }
    for (; n; n--, p++) crc = KB_ARM_CRC32_U8(crc, *p);
    return ~crc;
}
#endif

static inline void kb_crc32_init(void) {
    kb_fill_table(kb_crc32_table, KB_POLY_CRC32);
#if defined(__x86_64__)
    kb_crc32_init_folding();
#elif defined(KB_ARM_CRC)
    kb_crc32_by_instruction = kb_has_arm_crc();
#endif
}

static inline uint32_t kb_crc32_portable(uint32_t crc, const uint8_t *p, size_t n) {
    return kb_crc_sliced(kb_crc32_table, crc, p, n);
}

static inline uint32_t kb_crc32(uint32_t crc, const uint8_t *p, size_t n) {
#ifdef KB_CRC32_TARGET
    if (KB_CRC32_TAKES(n) && kb_crc32_by_instruction) return kb_crc32_instruction(crc, p, n);
#endif
    return kb_crc32_portable(crc, p, n);
}

#endif
