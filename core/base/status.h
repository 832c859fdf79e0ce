/* status.h: how a failure travels.
 *
 * A function that can fail returns a cfx_status; the place that knows the cause writes the message, once,
 * with cf_fail, and everyone above passes the status on with CF_TRY.  The message lives in a buffer of the
 * calling thread until the next failure there; cfx_error() shows it.  That buffer is the library's (log.c): plugins
 * have a copy of this file, and write there, too.
 */
#ifndef CF_BASE_STATUS_H
#define CF_BASE_STATUS_H

#include <string.h>

#include "conflux.h"

#define CF_TRY(call)                           \
    do {                                       \
        const cfx_status status_ = (call);     \
        if (status_ != CFX_OK) return status_; \
    } while (0)

/* Formats the message of this thread; the value is `status` (a macro, so that every reader, compilers too, sees
 * that a failure is never CFX_OK). */
#define cf_fail(status, ...) (cf_message(__VA_ARGS__), (status))
void cf_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts "prefix: " before this thread's message ("idx_read: path: ...") and returns `status`. */
cfx_status cf_fail_in(cfx_status status, const char *prefix);

/* malloc, calloc and realloc whose failure is a status.  Freed with free.  A block that cannot grow stays as it was. */
cfx_status cf_alloc(size_t bytes, void **out);
cfx_status cf_alloc_zero(size_t count, size_t size, void **out);
cfx_status cf_realloc(void **block, size_t bytes);

/* A copy of a string. */
static inline cfx_status cf_copy_string(const char *text, char **out) {
    void *copy = NULL;
    const size_t bytes = strlen(text) + 1;
    CF_TRY(cf_alloc(bytes, &copy));
    memcpy(copy, text, bytes);
    *out = (char *)copy; /* kernels of C++ include this, too */
    return CFX_OK;
}

/* a * b and a + b of sizes, false on overflow. */
static inline int cf_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline int cf_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

#endif
