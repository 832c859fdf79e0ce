/* json.h: a strict reader of JSON (RFC 8259) for file headers, and the writing of its strings.
 *
 * The reader is a cursor over text in memory: the caller asks for what it expects next and builds its own
 * structures, so that no tree of values is made.  Everything that the grammar forbids is refused, and so are
 * NUL characters in strings (they become C strings) and nesting deeper than CF_JSON_DEPTH.  A failure is
 * CFX_EIO with the byte where it was found; the cursor is then of no more use.
 *
 *     CF_TRY(cf_json_open(&json, '{'));
 *     for (;;) {
 *         CF_TRY(cf_json_more(&json, &more));
 *         if (!more) break;
 *         CF_TRY(cf_json_key(&json, &key));
 *         CF_TRY(cf_json_skip(&json));
 *     }
 *     CF_TRY(cf_json_end(&json));
 */
#ifndef CF_IO_JSON_H
#define CF_IO_JSON_H

#include "base/status.h"

enum { CF_JSON_DEPTH = 64 };

typedef struct cf_json {
    const char *text;
    size_t size, at;
    int depth;                          /* of open objects and arrays */
    char closer[CF_JSON_DEPTH];         /* the bracket that ends each */
    unsigned char begun[CF_JSON_DEPTH]; /* 1: its first element was seen, so a comma comes before the next */
} cf_json;

void cf_json_start(cf_json *json, const char *text, size_t size);

/* Enters an object ('{') or an array ('['). */
cfx_status cf_json_open(cf_json *json, char opener);
/* *more is 1 in front of another element (or key) of the innermost one; else it has been left. */
cfx_status cf_json_more(cf_json *json, int *more);
/* A string, decoded to UTF-8 and NUL-terminated, which the caller frees; *out is set only on success. */
cfx_status cf_json_string(cf_json *json, char **out);
/* A string and the colon behind it. */
cfx_status cf_json_key(cf_json *json, char **out);
/* A number that is an integer from 0 to 2^63 - 1, written without fraction or exponent. */
cfx_status cf_json_integer(cf_json *json, int64_t *out);
/* Any value, checked but not kept. */
cfx_status cf_json_skip(cf_json *json);
/* Fails unless only white space is left. */
cfx_status cf_json_end(cf_json *json);

/* Bytes of the UTF-8 character at p, of which `left` bytes can be read; 0 if there is none (overlong forms,
 * surrogates and what lies beyond U+10FFFF are none). */
size_t cf_utf8_length(const char *p, size_t left);

/* The JSON string of `text`, with its quotes, into `out` of at least cf_json_quote_room bytes; returns its
 * length.  Fails (0) if text is not UTF-8. */
size_t cf_json_quote(const char *text, char *out);
/* Each byte becomes six at most. */
static inline size_t cf_json_quote_room(size_t length) { return length * 6 + 2; }

#endif
