/* The first steps of an outside program that runs scripts. */
#include <conflux.h>
#include <stdio.h>

int main(void) {
    cfx_engine *engine;
    if (cfx_engine_new(NULL, &engine)) {
        fprintf(stderr, "engine: %s\n", cfx_error());
        return 1;
    }
    const cfx_status status = cfx_engine_run_string(engine, "print(require('conflux').ones(2, 3):sum():item())");
    if (status) fprintf(stderr, "script: %s\n", cfx_engine_error(engine));
    if (cfx_engine_free(engine)) return 1;
    return status != CFX_OK;
}
