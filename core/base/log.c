/* log.c: the message of a thread's last failure, and the log hook. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/locale.h"

static _Thread_local char message[CF_MESSAGE_BYTES];

CFX_API const char *cfx_error(void) { return message; }

CFX_API void cfx_error_set(const char *text) {
    const size_t length = strnlen(text, sizeof message - 1);
    memmove(message, text, length); /* the text may be the old message */
    message[length] = 0;
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
    char text[CF_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    cf_vformat(text, sizeof text, format, args);
    va_end(args);
    hook(own ? thread_log.data : atomic_load(&log_data), level, text);
}
