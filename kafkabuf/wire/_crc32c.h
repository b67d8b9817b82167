/* CRC-32C (Castagnoli), over a whole batch of magic 2: by the CPU's own instruction if it has one. */
#ifndef KAFKABUF_CRC32C_H
#define KAFKABUF_CRC32C_H

#include "_crc.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define KB_CRC32C_TARGET __attribute__((target("sse4.2")))
#define KB_CRC32C_U64(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define KB_CRC32C_U8(crc, byte) _mm_crc32_u8((crc), (byte))
#elif defined(KB_ARM_CRC)
#define KB_CRC32C_TARGET KB_ARM_CRC
#define KB_CRC32C_U64(crc, word) KB_ARM_CRC32C_U64((crc), (word))
#define KB_CRC32C_U8(crc, byte) KB_ARM_CRC32C_U8((crc), (byte))
#endif

#define KB_POLY_CRC32C 0x82F63B78u
/* Bytes of each of three interleaved streams, before their CRCs are joined. The instruction has a latency of three
 * cycles and a throughput of one, so three streams take the time of one. */
#define KB_STREAM 512

static uint32_t kb_crc32c_table[8][256];
static uint32_t kb_crc32c_shift[4][256]; /* effect of KB_STREAM zero bytes on a CRC-32C, a table per byte of the CRC */
static int kb_crc32c_by_instruction;

/* A CRC is linear: the effect of zero bytes on each single bit gives the effect on every byte by exclusive or. */
static inline void kb_fill_shift(void) {
    uint32_t bit_effect[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (int i = 0; i < KB_STREAM; i++) crc = (crc >> 8) ^ kb_crc32c_table[0][crc & 0xFF];
        bit_effect[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1) crc ^= bit_effect[8 * byte + bit];
            kb_crc32c_shift[byte][value] = crc;
        }
}

static inline void kb_crc32c_init(void) {
    kb_fill_table(kb_crc32c_table, KB_POLY_CRC32C);
    kb_fill_shift();
#if defined(__x86_64__)
    kb_crc32c_by_instruction = __builtin_cpu_supports("sse4.2");
#elif defined(KB_ARM_CRC)
    kb_crc32c_by_instruction = kb_has_arm_crc();
#endif
}

#ifdef KB_CRC32C_TARGET
static inline uint32_t kb_shift(uint32_t crc) {
    return kb_crc32c_shift[0][crc & 0xFF] ^ kb_crc32c_shift[1][(crc >> 8) & 0xFF] ^
           kb_crc32c_shift[2][(crc >> 16) & 0xFF] ^ kb_crc32c_shift[3][crc >> 24];
}

KB_CRC32C_TARGET static inline uint32_t kb_crc32c_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 3 * KB_STREAM; n -= 3 * KB_STREAM, p += 3 * KB_STREAM) {
        uint32_t second = 0, third = 0;
        for (int i = 0; i < KB_STREAM; i += 8) {
            uint64_t a, b, c;
            memcpy(&a, p + i, 8);
            memcpy(&b, p + KB_STREAM + i, 8);
            memcpy(&c, p + 2 * KB_STREAM + i, 8);
            crc = KB_CRC32C_U64(crc, a);
            second = KB_CRC32C_U64(second, b);
            third = KB_CRC32C_U64(third, c);
        }
        crc = kb_shift(kb_shift(crc) ^ second) ^ third;
    }
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = KB_CRC32C_U64(crc, word);
    }
    for (; n; n--, p++) crc = KB_CRC32C_U8(crc, *p);
    return ~crc;
}
#endif

static inline uint32_t kb_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
#ifdef KB_CRC32C_TARGET
    if (kb_crc32c_by_instruction) return kb_crc32c_instruction(crc, p, n);
#endif
    return kb_crc_sliced(kb_crc32c_table, crc, p, n);
}

static inline uint32_t kb_crc32c_portable(uint32_t crc, const uint8_t *p, size_t n) {
    return kb_crc_sliced(kb_crc32c_table, crc, p, n);
}

#endif
