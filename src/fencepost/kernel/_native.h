/* Memory, CRC-32C and LZ4 blocks for _batch.pyx: all that building a batch needs without the GIL.
 *
 * Libraries are called through Python, one batch at a time, and each call releases the GIL and has to get it back. A send
 * thread that builds sixty small batches should do that once.
 */
#ifndef FENCEPOST_NATIVE_H
#define FENCEPOST_NATIVE_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t load_u32(const uint8_t *at) { uint32_t n; memcpy(&n, at, 4); return n; }
static inline uint64_t load_u64(const uint8_t *at) { uint64_t n; memcpy(&n, at, 8); return n; }

/* Ask for the memory at `at`, which need not exist. */
static inline void prefetch(const void *at) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

/* --- memory ---
 *
 * A client allocates and frees the same few megabytes again and again: a frame, a batch, a column. malloc returns fresh
 * pages for blocks of this size, and a page fault every 4 KiB costs as much as decoding the data. So freed blocks from
 * 64 KiB to 16 MiB, rounded up to a power of two, are kept for the next allocation, 32 MiB of them at most.
 *
 * The lock is only tried: a thread that does not get it calls malloc or free. So no thread waits, with or without the GIL,
 * and a child that was forked while the lock was held does without kept blocks instead of waiting for ever.
 */

#define FENCEPOST_KEPT_SMALLEST ((size_t)65536)
#define FENCEPOST_KEPT_CLASSES 9
#if defined(__SANITIZE_ADDRESS__)
#define FENCEPOST_KEPT_MOST ((size_t)0) /* the sanitizer must see every malloc and free */
#else
#define FENCEPOST_KEPT_MOST ((size_t)32 << 20)
#endif

struct kept_block { struct kept_block *next; };
static struct kept_block *kept_blocks[FENCEPOST_KEPT_CLASSES];
static size_t kept_bytes = 0;
static PyThread_type_lock kept_lock = NULL;

static void prepare_memory(void) {
    if (kept_lock == NULL) kept_lock = PyThread_allocate_lock();
}

static inline int try_kept_lock(void) {
    return kept_lock != NULL && PyThread_acquire_lock(kept_lock, NOWAIT_LOCK);
}

/* Return the class for `size` bytes, or −1 if they are too few or too many to be kept. */
static inline int kept_class(size_t size) {
    if (size < FENCEPOST_KEPT_SMALLEST) return -1;
    for (int class = 0; class < FENCEPOST_KEPT_CLASSES; class++)
        if (size <= FENCEPOST_KEPT_SMALLEST << class) return class;
    return -1;
}

/* Return memory of at least `size` bytes with undefined content, or NULL. Set `capacity` to its real size. */
static uint8_t *take_memory(size_t size, size_t *capacity) {
    int class = kept_class(size);
    struct kept_block *block = NULL;
    *capacity = size;
    if (class < 0) return malloc(size);
    *capacity = FENCEPOST_KEPT_SMALLEST << class;
    if (try_kept_lock()) {
        block = kept_blocks[class];
        if (block != NULL) {
            kept_blocks[class] = block->next;
            kept_bytes -= *capacity;
        }
        PyThread_release_lock(kept_lock);
    }
    return block != NULL ? (uint8_t *)block : malloc(*capacity);
}

static void give_memory(uint8_t *data, size_t capacity) {
    int class = kept_class(capacity);
    if (data == NULL) return;
    if (class >= 0 && capacity == FENCEPOST_KEPT_SMALLEST << class && try_kept_lock()) {
        if (kept_bytes + capacity <= FENCEPOST_KEPT_MOST) {
            struct kept_block *block = (struct kept_block *)data;
            block->next = kept_blocks[class];
            kept_blocks[class] = block;
            kept_bytes += capacity;
            data = NULL;
        }
        PyThread_release_lock(kept_lock);
    }
    free(data);
}

/* --- CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) ---
 *
 * By the processor's instruction if it has one: SSE 4.2, detected at run time, or ARMv8, known at compile time.
 * Otherwise by table, eight bytes per step.
 */

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FENCEPOST_CRC_X86 1
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#define FENCEPOST_CRC_ARM 1
#include <arm_acle.h>
#endif

static uint32_t crc_table[8][256];  /* [k][b]: byte b followed by k zero bytes */
static int crc_by_instruction = 0;

#ifdef FENCEPOST_CRC_X86
#define FENCEPOST_CRC_TARGET __attribute__((target("sse4.2")))
#define FENCEPOST_CRC8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#define FENCEPOST_CRC64(crc, word) _mm_crc32_u64((crc), (word))
#elif defined(FENCEPOST_CRC_ARM)
#define FENCEPOST_CRC_TARGET
#define FENCEPOST_CRC8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#define FENCEPOST_CRC64(crc, word) __crc32cd((uint32_t)(crc), (word))
#endif

#ifdef FENCEPOST_CRC_TARGET
/* The instruction has a latency of three cycles, and one can start in each cycle. So the loop computes three stretches at
 * once and joins them: crc_shift moves a checksum over FENCEPOST_STRETCH zero bytes. */
#define FENCEPOST_STRETCH 1024
#define FENCEPOST_AHEAD 4096
static uint32_t crc_shift[4][256];

static inline uint32_t shift_crc(uint32_t crc) {
    return crc_shift[0][crc & 0xFF] ^ crc_shift[1][crc >> 8 & 0xFF] ^ crc_shift[2][crc >> 16 & 0xFF] ^ crc_shift[3][crc >> 24];
}

FENCEPOST_CRC_TARGET static uint32_t crc32c_by_instruction(uint32_t start, const uint8_t *at, size_t size) {
    uint64_t crc = start;
    while (size >= 3 * FENCEPOST_STRETCH) {
        uint64_t second = 0, third = 0;
        for (size_t line = 0; line < FENCEPOST_STRETCH; line += 64) {
            /* The stretches are too short for the processor to notice the streams by itself: without this, bytes that
             * are not in its cache take three times as long. */
            prefetch(at + FENCEPOST_AHEAD + 3 * line);
            prefetch(at + FENCEPOST_AHEAD + 3 * line + 64);
            prefetch(at + FENCEPOST_AHEAD + 3 * line + 128);
            for (size_t i = line; i < line + 64; i += 8) {
                crc = FENCEPOST_CRC64(crc, load_u64(at + i));
                second = FENCEPOST_CRC64(second, load_u64(at + FENCEPOST_STRETCH + i));
                third = FENCEPOST_CRC64(third, load_u64(at + 2 * FENCEPOST_STRETCH + i));
            }
        }
        crc = shift_crc((uint32_t)crc) ^ second;
        crc = shift_crc((uint32_t)crc) ^ third;
        at += 3 * FENCEPOST_STRETCH;
        size -= 3 * FENCEPOST_STRETCH;
    }
    for (; size >= 8; at += 8, size -= 8) crc = FENCEPOST_CRC64(crc, load_u64(at));
    for (; size; at++, size--) crc = FENCEPOST_CRC8(crc, *at);
    return (uint32_t)crc;
}
#endif

static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_table[7][crc & 0xFF] ^ crc_table[6][crc >> 8 & 0xFF] ^ crc_table[5][crc >> 16 & 0xFF]
            ^ crc_table[4][crc >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]]
            ^ crc_table[0][at[7]];
    }
    for (; size; at++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 0xFF];
    return crc;
}

/* Fill the tables; called once, at import. */
static void prepare_crc32c(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            crc_table[k][byte] = crc_table[k - 1][byte] >> 8 ^ crc_table[0][crc_table[k - 1][byte] & 0xFF];
#ifdef FENCEPOST_CRC_TARGET
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte << 8 * place;
            for (int i = 0; i < FENCEPOST_STRETCH; i++) crc = crc >> 8 ^ crc_table[0][crc & 0xFF];
            crc_shift[place][byte] = crc;
        }
#endif
#ifdef FENCEPOST_CRC_X86
    __builtin_cpu_init();
    crc_by_instruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(FENCEPOST_CRC_ARM)
    crc_by_instruction = 1;
#endif
}

static uint32_t crc32c_of(const uint8_t *data, size_t size, int by_table) {
#ifdef FENCEPOST_CRC_TARGET
    if (crc_by_instruction && !by_table) return ~crc32c_by_instruction(0xFFFFFFFF, data, size);
#endif
    (void)by_table;
    return ~crc32c_by_table(0xFFFFFFFF, data, size);
}

/* A checksum in pieces. The state before the first byte is FENCEPOST_CRC_START; the checksum is the inverted state after
 * the last. A piece that was summed by itself, from the state 0, is joined by crc32c_join. */
#define FENCEPOST_CRC_START 0xFFFFFFFFu

static uint32_t crc32c_add(uint32_t state, const uint8_t *data, size_t size) {
#ifdef FENCEPOST_CRC_TARGET
    if (crc_by_instruction) return crc32c_by_instruction(state, data, size);
#endif
    return crc32c_by_table(state, data, size);
}

/* Multiply two polynomials modulo the checksum's; the highest bit is the coefficient of x^0. */
static uint32_t crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u) product ^= b;
        b = b & 1 ? b >> 1 ^ 0x82F63B78 : b >> 1;
    }
    return product;
}

/* Return the state after a piece of `size` bytes that takes the state 0 to `piece`. */
static uint32_t crc32c_join(uint32_t state, uint32_t piece, size_t size) {
    uint32_t power = 0x00800000; /* x^8: one byte of zeros */
    for (; size; size >>= 1) {
        if (size & 1) state = crc_multiply(power, state);
        power = crc_multiply(power, power);
    }
    return state ^ piece;
}

/* --- LZ4 ---
 *
 * block:     sequences, one after the other; the last has literals only
 * sequence:  token (high nibble: number of literals, low: length of the match − 4; 15 means that more follows)
 *            | bytes added to the number of literals, up to and including the first that is not 255 | literals
 *            | distance back, 2 bytes little endian | bytes added to the length of the match, likewise
 * The last five bytes are literals, and no match begins in the last twelve.
 *
 * One pass: a table holds the last position of each hash of five bytes. A block has at most 64 KiB, so a position fits
 * into two bytes and every distance is short enough. Without a match the steps grow, so that incompressible bytes cost
 * little time. Table and steps are those of the reference implementation, which hashes four bytes for blocks of this size
 * and so finds more matches of just four. Such a match takes as much time as a long one and saves one byte. With five,
 * rows of JSON become two per cent smaller, in an eighth less time. The reference also enters the position two bytes
 * before a match's end. Without it rows become a little smaller still, in a twentieth less time.
 *
 * It stays here because users would feel its absence: `send_arrow` with lz4 takes 24 % more client CPU per record with
 * cramjam's LZ4 and 20 % more with the `lz4` package, `arrow()` 5 % and 14 % more (bench/NOTES.md, "LZ4").
 */

#define FENCEPOST_LZ4_BLOCK 65536
#define FENCEPOST_LZ4_HASH_BITS 13

/* The largest size of a packed block, plus room for copies that are rounded up to sixteen bytes. */
static inline size_t lz4_bound(size_t size) { return size + size / 255 + 32; }

/* Hash five bytes; eight must be readable. */
static inline uint32_t lz4_hash(const uint8_t *at) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    uint64_t five = load_u64(at) >> 24;
#else
    uint64_t five = load_u64(at) << 24;
#endif
    return (uint32_t)(five * 0x9E3779B97F4A7C15u >> (64 - FENCEPOST_LZ4_HASH_BITS));
}

static inline uint8_t *lz4_put_length(uint8_t *out, size_t length) {
    for (; length >= 255; length -= 255) *out++ = 255;
    *out++ = (uint8_t)length;
    return out;
}

/* Return the length of the common prefix, up to `end`. */
static inline size_t lz4_same(const uint8_t *a, const uint8_t *b, const uint8_t *end) {
    const uint8_t *start = a;
    while (end - a >= 8) {
        uint64_t different = load_u64(a) ^ load_u64(b);
        if (different) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return (size_t)(a - start) + (size_t)(__builtin_ctzll(different) >> 3);
#else
            break;
#endif
        }
        a += 8;
        b += 8;
    }
    while (a < end && *a == *b) a++, b++;
    return (size_t)(a - start);
}

static inline uint8_t *lz4_put_literals(
    uint8_t *out, uint8_t *token, const uint8_t *literals, size_t number, const uint8_t *end
) {
    if (number >= 15) {
        *token = 0xF0;
        out = lz4_put_length(out, number - 15);
    } else {
        *token = (uint8_t)(number << 4);
    }
    if (number <= 16 && end - literals >= 16) {
        memcpy(out, literals, 16); /* the compiler inlines a fixed size */
    } else {
        memcpy(out, literals, number);
    }
    return out + number;
}

/* Pack at most FENCEPOST_LZ4_BLOCK bytes into `out`, which has room for lz4_bound(size); return the packed size. */
static size_t lz4_pack(const uint8_t *data, size_t size, uint8_t *out) {
    const uint8_t *at = data, *pending = data; /* pending: the first literal that is not yet written */
    uint8_t *start = out, *token;
    if (size > 12) {
        uint16_t table[1 << FENCEPOST_LZ4_HASH_BITS];
        const uint8_t *last_match = data + size - 12, *end_of_matches = data + size - 5;
        memset(table, 0, sizeof table);
        at++; /* position 0 means an empty entry */
        for (;;) {
            const uint8_t *earlier, *next = at;
            uint32_t step = 1, tries = 64;
            do {
                uint32_t hash;
                at = next;
                next += step;
                step = tries++ >> 6;
                if (next > last_match + 1) goto rest;
                hash = lz4_hash(at);
                earlier = data + table[hash];
                table[hash] = (uint16_t)(at - data);
            } while (load_u32(earlier) != load_u32(at));
            while (at > pending && earlier > data && at[-1] == earlier[-1]) at--, earlier--;
            for (;;) {
                size_t distance = (size_t)(at - earlier), more = lz4_same(at + 4, earlier + 4, end_of_matches);
                token = out++;
                out = lz4_put_literals(out, token, pending, (size_t)(at - pending), data + size);
                *out++ = (uint8_t)distance;
                *out++ = (uint8_t)(distance >> 8);
                if (more >= 15) {
                    *token |= 15;
                    out = lz4_put_length(out, more - 15);
                } else {
                    *token |= (uint8_t)more;
                }
                at += 4 + more;
                pending = at;
                if (at > last_match) goto rest;
                {
                    uint32_t hash = lz4_hash(at);
                    earlier = data + table[hash];
                    table[hash] = (uint16_t)(at - data);
                }
                if (load_u32(earlier) != load_u32(at)) break;
            }
            at++;
        }
    }
rest:
    token = out++;
    out = lz4_put_literals(out, token, pending, (size_t)(data + size - pending), data + size);
    return (size_t)(out - start);
}

static inline int lz4_more_length(const uint8_t **at, const uint8_t *end, size_t *length) {
    uint8_t byte;
    do {
        if (*at == end) return 0;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return 1;
}

/* Unpack a block into `out`, which has `room` bytes. Return the size, or −1 if the block is damaged or does not fit. Short
 * stretches are copied in steps of sixteen bytes if the buffers allow it; the next copy overwrites the excess. */
static ptrdiff_t lz4_unpack(const uint8_t *at, size_t size, uint8_t *out, size_t room) {
    const uint8_t *end = at + size;
    uint8_t *to = out, *full = out + room;
    for (;;) {
        size_t length, distance;
        uint8_t token;
        const uint8_t *from;
        if (at == end) return -1;
        token = *at++;
        length = token >> 4;
        if (length == 15 && !lz4_more_length(&at, end, &length)) return -1;
        if (length <= 16 && end - at >= 16 && full - to >= 16) {
            memcpy(to, at, 16);
        } else {
            if (length > (size_t)(end - at) || length > (size_t)(full - to)) return -1;
            if (length) memcpy(to, at, length);
        }
        at += length;
        to += length;
        if (at == end) return to - out;
        if (end - at < 2) return -1;
        distance = at[0] | (size_t)at[1] << 8;
        at += 2;
        if (distance == 0 || distance > (size_t)(to - out)) return -1;
        length = token & 15;
        if (length == 15 && !lz4_more_length(&at, end, &length)) return -1;
        length += 4;
        if (length > (size_t)(full - to)) return -1;
        from = to - distance;
        if (distance >= 16 && (size_t)(full - to) - length >= 16) {
            uint8_t *stop = to + length;
            do {
                memcpy(to, from, 16);
                to += 16;
                from += 16;
            } while (to < stop);
            to = stop;
        } else if (distance >= 8 && (size_t)(full - to) - length >= 8) {
            uint8_t *stop = to + length;
            do {
                memcpy(to, from, 8);
                to += 8;
                from += 8;
            } while (to < stop);
            to = stop;
        } else {
            for (; length; length--) *to++ = *from++;
        }
    }
}

#endif
