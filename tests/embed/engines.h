/* engines.h: what the tests of engines share.  Include it after test.h. */
#ifndef CF_TEST_ENGINES_H
#define CF_TEST_ENGINES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static inline cfx_engine *engine_with(cfx_engine_options options) {
    cfx_engine *engine = NULL;
    options.size = sizeof options;
    options.devices = options.devices ? options.devices : "cpu";
    options.threads = 1;
    if (cfx_engine_new(&options, &engine) != CFX_OK) printf("# %s\n", cfx_error()), exit(2);
    return engine;
}
static inline cfx_engine *new_engine(void) { return engine_with((cfx_engine_options){0}); }

static inline void free_engine(cfx_engine *engine) { CHECK_STATUS(cfx_engine_free(engine), CFX_OK); }

static inline void run(cfx_engine *engine, const char *text) {
    CHECK_STATUS(cfx_engine_run_buffer(engine, text, strlen(text), "t.lua"), CFX_OK);
}

/* A script that fails, and what the first line of its message ends in. */
static inline void refuses(cfx_engine *engine, const char *text, cfx_status status, const char *message) {
    CHECK_STATUS(cfx_engine_run_buffer(engine, text, strlen(text), "t.lua"), status);
    const char *got = cfx_engine_error(engine);
    const size_t line = strcspn(got, "\n"), n = strlen(message);
    if (line < n || strncmp(got + line - n, message, n) != 0)
        printf("# expected \"%s\", got \"%s\"\n", message, got), CHECK(!"the message");
    CHECK(strncmp(cfx_error(), got, 1000) == 0);
}

static inline int has(const char *text, const char *part) {
    if (strstr(text, part)) return 1;
    printf("# expected \"%s\" in \"%s\"\n", part, text);
    return 0;
}

/* The number that the Lua function returns. */
static inline double ask(cfx_engine *engine, const char *name) {
    cfx_value result;
    if (!CHECK_STATUS(cfx_engine_call(engine, name, 0, NULL, 1, &result), CFX_OK)) return NAN;
    return result.kind == CFX_NUMBER ? result.as.number : NAN;
}

/* A script that another thread waits for: it calls begin(). */
typedef struct stopper {
    cfx_engine *engine;
    pthread_t thread;
    _Atomic int begun; /* the script has */
} stopper;

static inline int32_t begin(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    (void)nargs, (void)args, (void)nresults, (void)results;
    atomic_store(&((stopper *)data)->begun, 1);
    return 0;
}

#endif
