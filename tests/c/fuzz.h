/* fuzz.h: damaged copies of good files, the same on every machine: those of round k come from `state = k`.
 *
 * Include it after test.h and files.h.
 */
#ifndef CF_TEST_FUZZ_H
#define CF_TEST_FUZZ_H

#include "chance.h"

/* Changes some bytes, doubles, drops or moves a stretch, or cuts the end off. */
static inline size_t mutate(unsigned char *data, size_t bytes, size_t room) {
    for (int changes = 1 + (int)(bits() % 6); changes > 0 && bytes > 4; changes--) {
        const size_t at = bits() % bytes, n = 1 + bits() % (bytes - at < 64 ? bytes - at : 64), to = bits() % bytes;
        switch (bits() % 6) {
        case 0: data[at] = (unsigned char)bits(); break;
        case 1: data[at] ^= (unsigned char)(1 << bits() % 8); break;
        case 2: memset(data + at, bits() % 2 ? 0xFF : 0, n); break;
        case 3: memmove(data + at, data + at + n, bytes - at - n), bytes -= n; break;
        case 4:
            if (bytes + n <= room) memmove(data + at + n, data + at, bytes - at), bytes += n;
            break;
        default: memmove(data + to, data + at, to + n <= bytes ? n : bytes - to); break;
        }
    }
    return bytes;
}

/* Puts a word at a random place: what a reader of tables looks for. */
static inline size_t insert_word(unsigned char *data, size_t bytes, size_t room) {
    static const char *const words[] = {
        "\n",   "\r\n",  ",", ",,", " ",    "\"",   "..", "/",   "\xEF\xBB\xBF",        "nan",
        "-inf", "1e999", "-", ".",  "1e-5", "0x1p", "\t", "n03", "9999999999999999999", "n01 a"};
    const char *word = words[bits() % (sizeof words / sizeof *words)];
    const size_t n = strlen(word), at = bits() % (bytes + 1);
    if (bytes + n > room) return bytes;
    memmove(data + at + n, data + at, bytes - at);
    memcpy(data + at, word, n);
    return bytes + n;
}

/* As a text is damaged: mostly by characters that may stand there, so that much of it is still read. */
static inline size_t mutate_text(unsigned char *data, size_t bytes, size_t room) {
    static const char characters[] = "0123456789.,-eE \n";
    if (bits() % 4 == 0) return mutate(data, bytes, room);
    for (int changes = 1 + (int)(bits() % 3); changes > 0; changes--) {
        if (bits() % 2) bytes = insert_word(data, bytes, room);
        else data[bits() % bytes] = (unsigned char)characters[bits() % (sizeof characters - 1)];
    }
    return bytes;
}

#endif
