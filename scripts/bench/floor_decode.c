/* floor_decode.c: what reading pictures would take if nothing but decoding them were to be done: each file read and
 * decoded whole, on one thread, into one buffer.  A part of the library that floor.c begins.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "data/jpeg.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct bytes {
    unsigned char *data;
    size_t n, room;
} bytes;

static int make_room(bytes *b, size_t n) {
    if (n <= b->room) return 1;
    free(b->data);
    b->data = malloc(n);
    b->room = b->data ? n : 0;
    return b->data != NULL;
}

static int read_file(const char *path, bytes *b) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    fseek(file, 0, SEEK_END);
    b->n = (size_t)ftell(file);
    rewind(file);
    const int is_read = make_room(b, b->n) && fread(b->data, 1, b->n, file) == b->n;
    fclose(file);
    return is_read;
}

static int decode(cf_jpeg *jpeg, const char *path, bytes *file, bytes *pixels) {
    int32_t width, height;
    if (!read_file(path, file)) return 0;
    if (cf_jpeg_open(jpeg, file->data, file->n, &width, &height) != CFX_OK) return 0;
    if (!make_room(pixels, (size_t)width * (size_t)height * 3)) return 0;
    return cf_jpeg_decode(jpeg, 1, (cf_rect){0, 0, width, height}, pixels->data) == CFX_OK;
}

/* Microseconds for all n files; below 0: one could not be read. */
__attribute__((visibility("default"))) double conflux_floor_decode(int32_t n, const char *const *paths) {
    cf_jpeg *jpeg;
    bytes file = {0}, pixels = {0};
    int is_decoded = cf_jpeg_new(&jpeg) == CFX_OK;
    const double start = now();
    for (int32_t i = 0; i < n && is_decoded; i++) is_decoded = decode(jpeg, paths[i], &file, &pixels);
    const double us = now() - start;
    cf_jpeg_free(jpeg);
    free(file.data);
    free(pixels.data);
    return is_decoded ? us : -1;
}
