/* Conflux as a part of a plugin: its library is opened for the plugin alone, so that its symbols are not the program's. */
#include "test.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Of the library's functions, which this program is not linked with. */
const char *cfx_error(void) { return ""; }

TEST(an_engine_works_in_a_library_that_was_opened_for_itself) {
    void *library = dlopen(getenv("CONFLUX_HOST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!CHECK(library)) {
        printf("# %s\n", dlerror());
        return;
    }
    __typeof__(cfx_engine_new) *new_engine;
    __typeof__(cfx_engine_run_string) *run_string;
    __typeof__(cfx_engine_error) *error;
    __typeof__(cfx_engine_free) *free_engine;
    *(void **)&new_engine = dlsym(library, "cfx_engine_new");
    *(void **)&run_string = dlsym(library, "cfx_engine_run_string");
    *(void **)&error = dlsym(library, "cfx_engine_error");
    *(void **)&free_engine = dlsym(library, "cfx_engine_free");
    if (!CHECK(new_engine && run_string && error && free_engine)) return;
    cfx_engine *engine;
    const cfx_engine_options options = {.size = sizeof options, .devices = "cpu", .threads = 1};
    if (!CHECK(new_engine(&options, &engine) == CFX_OK)) return;
    const cfx_status status = run_string(engine, "assert(require('conflux').ones(3):sum():item() == 3)");
    if (!CHECK(status == CFX_OK)) printf("# %s\n", error(engine));
    CHECK(free_engine(engine) == CFX_OK);
}
