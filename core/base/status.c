/* status.c: messages of failures, checked allocation, the log hook. */
#include "base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

void cf_message(const char *format, ...) {
    char text[MESSAGE_BYTES]; /* the arguments may include the old message */
    va_list args;
    va_start(args, format);
    cf_vformat(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
}

cfx_status cf_fail_in(cfx_status status, const char *prefix) { return cf_fail(status, "%s: %s", prefix, message); }

CFX_API const char *cfx_error(void) { return message; }

CFX_API void cfx_error_set(const char *text) { cf_message("%s", text); }

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

/* The hook is process-wide, set before threads start or replaced under the host's own care. */
static _Atomic(cfx_log_hook) log_hook;
static _Atomic(void *) log_data;

CFX_API void cfx_log_to(cfx_log_hook hook, void *data) {
    atomic_store(&log_data, data);
    atomic_store(&log_hook, hook);
}

/* A thread's own goes before the process's. */
static _Thread_local cfx_log thread_log;

CFX_API cfx_log cfx_log_here(cfx_log log) {
    const cfx_log before = thread_log;
    thread_log = log;
    return before;
}

cfx_log cf_log_of_thread(void) { return thread_log; }

void cf_log(int level, const char *format, ...) {
    const bool own = thread_log.hook != NULL;
    const cfx_log_hook hook = own ? thread_log.hook : atomic_load(&log_hook);
    if (!hook) return;
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    cf_vformat(text, sizeof text, format, args);
    va_end(args);
    hook(own ? thread_log.data : atomic_load(&log_data), level, text);
}
