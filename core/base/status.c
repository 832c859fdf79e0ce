/* status.c: how messages of failures are written, and checked allocation. */
#include "base/status.h"

#include <stdarg.h>
#include <stdlib.h>

#include "base/locale.h"
#include "base/log.h"

void cf_message(const char *format, ...) {
    char text[CF_MESSAGE_BYTES]; /* the arguments may include the old message */
    va_list args;
    va_start(args, format);
    cf_vformat(text, sizeof text, format, args);
    va_end(args);
    cfx_error_set(text);
}

cfx_status cf_fail_in(cfx_status status, const char *prefix) { return cf_fail(status, "%s: %s", prefix, cfx_error()); }

cfx_status cf_alloc(size_t bytes, void **out) {
    *out = malloc(bytes ? bytes : 1);
    return *out ? CFX_OK : cf_fail(CFX_EMEMORY, "out of host memory: %zu bytes", bytes);
}

cfx_status cf_alloc_zero(size_t count, size_t size, void **out) {
    *out = calloc(count ? count : 1, size ? size : 1);
    return *out ? CFX_OK : cf_fail(CFX_EMEMORY, "out of host memory: %zu times %zu bytes", count, size);
}

cfx_status cf_realloc(void **block, size_t bytes) {
    void *grown = realloc(*block, bytes ? bytes : 1);
    if (!grown) return cf_fail(CFX_EMEMORY, "out of host memory: %zu bytes", bytes);
    *block = grown;
    return CFX_OK;
}
