/* options.h: structs of options, as callers were compiled with them.
 *
 * A struct of options grows at its end, and its first field is the size that the caller knows.  A field that the
 * caller's lacks is 0, the default.  A size within a field is no struct of any version: reading it would cut a pointer
 * in two.  A header alone, since libconflux_host has only the public names of libconflux.
 */
#ifndef CF_BASE_OPTIONS_H
#define CF_BASE_OPTIONS_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "conflux.h"

typedef struct cf_field {
    size_t from, to;
} cf_field;
#define CF_FIELD(type, name) \
    { offsetof(type, name), offsetof(type, name) + sizeof(((type *)0)->name) }

/* Reads the options `given` into `out`, of `bytes` bytes.  `last` are the n fields that may be the caller's last; those
 * before them have no default.  `name` is what the message calls the options. */
static inline cfx_status cf_options_read(const char *name, const void *given, const cf_field *last, size_t n, void *out,
                                         size_t bytes) {
    size_t size;
    char text[160];
    memcpy(&size, given, sizeof size);
    int ends = size == bytes;
    for (size_t k = 0; k < n; k++) /* with what aligns the next field, or without */
        ends = ends || size == last[k].to || (k > 0 && size == last[k].from);
    if (ends) {
        memset(out, 0, bytes);
        memcpy(out, given, size);
        memcpy(out, &bytes, sizeof bytes);
        return CFX_OK;
    }
    snprintf(text, sizeof text, "%s: size: expected %zu, or where one of the last %zu fields ends, got %zu", name,
             bytes, n, size);
    cfx_error_set(text);
    return CFX_EARG;
}

#endif
