/* images.c: see images.h. */
#include "data/images.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/rng.h"

enum { FIRST_ROOM = 64, FIRST_TEXT = 4096 };

/* Room for one more of `size` bytes. */
static cfx_status make_room(void **list, size_t size, int64_t n, int64_t *room) {
    if (n < *room) return CFX_OK;
    const int64_t more = *room ? *room * 2 : FIRST_ROOM;
    CF_TRY(cf_realloc(list, (size_t)more * size));
    *room = more;
    return CFX_OK;
}

static cfx_status add_text(cfx_images *i, const char *text, size_t *at) {
    const size_t bytes = strlen(text) + 1;
    size_t room = i->text_room ? i->text_room : FIRST_TEXT;
    while (room - i->bytes < bytes) room *= 2;
    if (room > i->text_room) {
        CF_TRY(cf_realloc((void **)&i->text, room));
        i->text_room = room;
    }
    memcpy(i->text + i->bytes, text, bytes);
    *at = i->bytes;
    i->bytes += bytes;
    return CFX_OK;
}

cfx_status cf_images_new(const char *folder, cfx_images **out) {
    cfx_images *i = NULL;
    CF_TRY(cf_alloc_zero(1, sizeof *i, (void **)&i));
    i->refs = 1;
    const cfx_status status = cf_copy_string(folder, &i->folder);
    if (status == CFX_OK) *out = i;
    else cfx_images_free(&i);
    return status;
}

cfx_status cf_images_add(cfx_images *i, const char *path, int32_t id) {
    CF_TRY(make_room((void **)&i->image, sizeof *i->image, i->n, &i->room));
    CF_TRY(add_text(i, path, &i->image[i->n].path));
    i->image[i->n++].id = id;
    return CFX_OK;
}

cfx_status cf_images_add_class(cfx_images *i, const char *name, const char *description) {
    int64_t room = i->class_room;
    CF_TRY(make_room((void **)&i->class, sizeof *i->class, i->classes, &room));
    i->class_room = (int32_t)room;
    CF_TRY(add_text(i, name, &i->class[i->classes].name));
    CF_TRY(add_text(i, description, &i->class[i->classes].description));
    i->classes++;
    return CFX_OK;
}

cfx_status cf_images_check(const cfx_images *i) {
    unsigned char *seen = NULL;
    cfx_status status = CFX_OK;
    CF_TRY(cf_alloc_zero((size_t)i->classes, 1, (void **)&seen));
    for (int64_t k = 0; k < i->n; k++) seen[i->image[k].id] = 1;
    for (int32_t c = 0; c < i->classes && status == CFX_OK; c++)
        if (!seen[c])
            status = cf_fail(CFX_EIO, "%s: there are no pictures of class '%s'", i->folder, cf_images_class_name(i, c));
    free(seen);
    return status;
}

cfx_images *cf_images_hold(cfx_images *i) {
    i->refs++;
    return i;
}

CFX_API void cfx_images_free(cfx_images **images) {
    cfx_images *i = images ? *images : NULL;
    if (!i) return;
    *images = NULL;
    if (--i->refs > 0) return;
    free(i->folder);
    free(i->image);
    free(i->class);
    free(i->text);
    free(i);
}

/* ---- its entries ------------------------------------------------------------------------------------ */

CFX_API cfx_status cfx_images_count(const cfx_images *i, int64_t *pictures, int32_t *classes, int64_t *left_out) {
    if (!i || !pictures || !classes || !left_out) return cf_fail(CFX_EARG, "images_count: an argument is NULL");
    *pictures = i->n;
    *classes = i->classes;
    *left_out = i->left_out;
    return CFX_OK;
}

CFX_API cfx_status cfx_images_at(const cfx_images *i, int64_t k, char *path, size_t bytes, int32_t *id) {
    if (!i || !path || !id) return cf_fail(CFX_EARG, "images_at: an argument is NULL");
    if (k < 0 || k >= i->n) return cf_fail(CFX_EARG, "images_at: picture %" PRId64 " of %" PRId64, k, i->n);
    const char *name = i->text + i->image[k].path;
    const size_t need = strlen(i->folder) + 1 + strlen(name) + 1;
    if (need > bytes) return cf_fail(CFX_EARG, "images_at: a path of %zu bytes, for which there are %zu", need, bytes);
    cf_format(path, bytes, "%s/%s", i->folder, name);
    *id = i->image[k].id;
    return CFX_OK;
}

CFX_API cfx_status cfx_images_class(const cfx_images *i, int32_t k, const char **name, const char **description) {
    if (!i || !name || !description) return cf_fail(CFX_EARG, "images_class: an argument is NULL");
    if (k < 0 || k >= i->classes)
        return cf_fail(CFX_EARG, "images_class: class %" PRId32 " of %" PRId32, k, i->classes);
    *name = cf_images_class_name(i, k);
    *description = i->text + i->class[k].description;
    return CFX_OK;
}

/* ---- parts of it ----------------------------------------------------------------------------------- */

/* A list with the same classes and no pictures. */
static cfx_status copy_classes(const cfx_images *i, cfx_images *to) {
    to->left_out = i->left_out;
    for (int32_t c = 0; c < i->classes; c++)
        CF_TRY(cf_images_add_class(to, cf_images_class_name(i, c), i->text + i->class[c].description));
    return CFX_OK;
}

static cfx_status copy_picture(const cfx_images *i, int64_t k, cfx_images *to) {
    if (k < 0 || k >= i->n) return cf_fail(CFX_EARG, "position %" PRId64 "; expected 0 to %" PRId64, k, i->n - 1);
    return cf_images_add(to, i->text + i->image[k].path, i->image[k].id);
}

CFX_API cfx_status cfx_images_select(const cfx_images *i, int64_t n, const int64_t *positions, cfx_images **out) {
    cfx_images *part = NULL;
    if (!i || n < 0 || (n && !positions) || !out) return cf_fail(CFX_EARG, "images_select: an argument is NULL");
    cfx_status status = cf_images_new(i->folder, &part);
    if (status == CFX_OK) status = copy_classes(i, part);
    for (int64_t k = 0; k < n && status == CFX_OK; k++) status = copy_picture(i, positions[k], part);
    if (status == CFX_OK) *out = part;
    else cfx_images_free(&part);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "images_select");
}

CFX_API cfx_status cfx_images_draw(const cfx_images *i, int64_t n, uint64_t seed, cfx_images **out) {
    int64_t *positions = NULL;
    size_t bytes;
    if (!i || n < 0 || !out) return cf_fail(CFX_EARG, "images_draw: an argument is NULL, or n below 0");
    if (i->n == 0) return cf_fail(CFX_EARG, "images_draw: there are no pictures");
    if (!cf_mul_size((size_t)n, sizeof *positions, &bytes)) bytes = SIZE_MAX;
    CF_TRY(cf_alloc(bytes, (void **)&positions));
    for (int64_t k = 0; k < n; k++) {
        uint32_t w[4];
        cf_philox(seed, 0, (uint64_t)k, w);
        positions[k] = (int64_t)(((unsigned __int128)((uint64_t)w[0] << 32 | w[1]) * (uint64_t)i->n) >> 64);
    }
    const cfx_status status = cfx_images_select(i, n, positions, out);
    free(positions);
    return status;
}
