/* about.c: the libraries that core rests on. */
#include <stdio.h>
#include <zlib.h>

#include "data/jpeg.h"

CFX_API const char *cfx_libraries(void) {
    static _Thread_local char text[128];
    snprintf(text, sizeof text, "zlib %s, %s", zlibVersion(), cf_jpeg_about());
    return text;
}
