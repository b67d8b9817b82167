/* The common part of CRC-32 and CRC-32C: tables for machines without an instruction, and powers of x for folding.
 *
 * Both polynomials are bit-reflected: the least significant bit of a byte is the coefficient of the highest power. Each
 * CRC function takes and returns the final value (inverted already), so that calls can be chained:
 * crc(crc(0, a), b) == crc(0, a + b). For little-endian machines only; all supported machines are.
 */
#ifndef KAFKABUF_CRC_H
#define KAFKABUF_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../process/_platform.h"

static inline void kb_fill_table(uint32_t table[8][256], uint32_t poly) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (poly & (0u - (crc & 1u)));
        table[0][i] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int i = 0; i < 256; i++)
            table[slice][i] = (table[slice - 1][i] >> 8) ^ table[0][table[slice - 1][i] & 0xFF];
}

/* Slicing by eight (Kounavis and Berry, 2005). */
static inline uint32_t kb_crc_sliced(uint32_t table[8][256], uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++) crc ^= table[7 - i][(word >> (8 * i)) & 0xFF];
    }
    for (; n; n--, p++) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

/* x to the n modulo the polynomial, reflected: bit 31 is the coefficient of 1. */
static inline uint32_t kb_power_of_x(uint32_t poly, int n) {
    uint32_t power = 0x80000000u;
    for (; n; n--) power = (power >> 1) ^ (poly & (0u - (power & 1u)));
    return power;
}

#endif
