/* version.c: what this library is. */
#include <stdio.h>
#include <zlib.h>

#include "conflux.h"

CFX_API int32_t cfx_abi_version(void) { return CFX_ABI_VERSION; }
CFX_API const char *cfx_version(void) { return CF_VERSION; }
CFX_API const char *cfx_build(void) { return CF_BUILD; }
CFX_API const char *cfx_libraries(void) {
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "zlib %s", zlibVersion());
    return text;
}
