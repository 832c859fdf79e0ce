/* picture.c: see picture.h. */
#include "data/picture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/locale.h"
#include "data/processors.h"
#include "tensor/buffer.h"

/* A buffer that one huge picture made larger than this is given back. */
enum { KEPT_BYTES = 64 << 20 };

static cfx_status make_room(struct cf_bytes *b, size_t bytes) {
    if (bytes <= b->room) return CFX_OK;
    free(b->data);
    *b = (struct cf_bytes){0};
    CF_TRY(cf_alloc(bytes, (void **)&b->data));
    b->room = bytes;
    return CFX_OK;
}

static void give_back(struct cf_bytes *b) {
    if (b->room <= KEPT_BYTES) return;
    free(b->data);
    *b = (struct cf_bytes){0};
}

/* ---- files ----------------------------------------------------------------------------------------- */

static cfx_status read_all(int fd, unsigned char *to, size_t bytes) {
    for (size_t have = 0; have < bytes;) {
        const ssize_t got = read(fd, to + have, bytes - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cf_fail(CFX_EIO, "%s", cf_strerror(errno));
        if (got == 0) return cf_fail(CFX_EIO, "it became shorter while it was read");
        have += (size_t)got;
    }
    return CFX_OK;
}

static cfx_status read_open_file(int fd, struct cf_bytes *file, size_t *bytes) {
    struct stat st;
    if (fstat(fd, &st) != 0) return cf_fail(CFX_EIO, "%s", cf_strerror(errno));
    if (!S_ISREG(st.st_mode)) return cf_fail(CFX_EIO, "not a regular file");
    *bytes = (size_t)st.st_size;
    CF_TRY(make_room(file, *bytes));
    return read_all(fd, file->data, *bytes);
}

static cfx_status read_file(const char *path, struct cf_bytes *file, size_t *bytes) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would not return */
    if (fd < 0) return cf_fail(CFX_EIO, "%s", cf_strerror(errno));
    const cfx_status status = read_open_file(fd, file, bytes);
    close(fd);
    return status;
}

static cfx_status open_file(cf_picture *p, const char *path, cf_draw draw) {
    size_t bytes;
    if (!p->jpeg) CF_TRY(cf_jpeg_new(&p->jpeg));
    CF_TRY(read_file(path, &p->file, &bytes));
    CF_TRY(cf_jpeg_open(p->jpeg, p->file.data, bytes, &p->width, &p->height));
    return cf_transform_plan(p->transform, p->height, p->width, draw, &p->plan);
}

cfx_status cf_picture_open(cf_picture *p, const char *path, cf_draw draw) {
    const cfx_status status = open_file(p, path, draw);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, path);
}

/* ---- pixels ---------------------------------------------------------------------------------------- */

/* A side of the plan: which pixels of the file's picture, as it is decoded, make which pixels of the result. */
typedef struct side {
    cf_scale scale;      /* of the pixels from `base` on */
    int32_t base;        /* in the picture as it is decoded */
    int32_t from, count; /* of those, what is needed */
    int32_t before;      /* black pixels of the result before the picture's */
} side;

/* box, length: of the picture at full size what is resized, `whole` its side; window, wanted: of the result. */
static side plan_side(int32_t decode, int32_t whole, int32_t box, int32_t length, int32_t size, int32_t window,
                      int32_t wanted) {
    const int32_t decoded = (whole + decode - 1) / decode;
    side s = {.base = box / decode, .before = window < 0 ? -window : 0};
    int32_t end = (box + length + decode - 1) / decode, to;
    if (end > decoded) end = decoded;
    s.scale = (cf_scale){.pixels = end - s.base,
                         .from = (double)box / decode - s.base,
                         .to = (double)(box + length) / decode - s.base,
                         .size = size,
                         .first = window > 0 ? window : 0};
    const int32_t last = window + wanted < size ? window + wanted : size;
    s.scale.count = last - s.scale.first;
    cf_scale_needs(&s.scale, &s.from, &to);
    s.count = to - s.from;
    return s;
}

/* Of a side that keeps its size: the pixels that are wanted, and none around them. */
static side keep_size(side s) {
    s.from = s.scale.first;
    s.count = s.scale.count;
    return s;
}

static cfx_status decode(cf_picture *p, const side *rows, const side *columns, unsigned char *out) {
    const cf_rect part = {columns->base + columns->from, rows->base + rows->from, columns->count, rows->count};
    return cf_jpeg_decode(p->jpeg, p->plan.decode, part, out);
}

/* Moves a picture of fewer pixels to its place in the window, from the last row on: it lies at the window's beginning. */
static void pad(const cf_plan *p, const side *rows, const side *columns, unsigned char *out) {
    const size_t wide = (size_t)p->window.width * 3, part = (size_t)columns->scale.count * 3;
    const size_t before = (size_t)columns->before * 3;
    for (int32_t y = rows->scale.count - 1; y >= 0; y--) {
        unsigned char *row = out + (size_t)(y + rows->before) * wide;
        memmove(row + before, out + (size_t)y * part, part);
        memset(row, 0, before);
        memset(row + before + part, 0, wide - before - part);
    }
    memset(out, 0, (size_t)rows->before * wide);
    const size_t end = (size_t)(rows->before + rows->scale.count);
    memset(out + end * wide, 0, ((size_t)p->window.height - end) * wide);
}

/* The window of the resized picture. */
static cfx_status make_window(cf_picture *p, unsigned char *out) {
    const cf_plan *plan = &p->plan;
    side rows = plan_side(plan->decode, p->height, plan->box.y, plan->box.height, plan->height, plan->window.y,
                          plan->window.height);
    side columns = plan_side(plan->decode, p->width, plan->box.x, plan->box.width, plan->width, plan->window.x,
                             plan->window.width);
    const int same = plan->decode == 1 && plan->height == plan->box.height && plan->width == plan->box.width;
    if (same) {
        rows = keep_size(rows);
        columns = keep_size(columns);
        CF_TRY(decode(p, &rows, &columns, out));
    } else {
        CF_TRY(make_room(&p->decoded, (size_t)rows.count * (size_t)columns.count * 3));
        CF_TRY(decode(p, &rows, &columns, p->decoded.data));
        CF_TRY(cf_resize_run(&p->resize, &rows.scale, &columns.scale, p->decoded.data, out));
    }
    if (rows.scale.count < plan->window.height || columns.scale.count < plan->window.width)
        pad(plan, &rows, &columns, out);
    return CFX_OK;
}

static void flip(unsigned char *rgb, int32_t height, int32_t width) {
    for (int32_t y = 0; y < height; y++, rgb += (size_t)width * 3) {
        unsigned char *a = rgb, *b = rgb + ((size_t)width - 1) * 3;
        for (; a < b; a += 3, b -= 3)
            for (int c = 0; c < 3; c++) {
                const unsigned char t = a[c];
                a[c] = b[c];
                b[c] = t;
            }
    }
}

static cfx_status make_bytes(cf_picture *p, unsigned char *out) {
    const cf_plan *plan = &p->plan;
    CF_TRY(make_window(p, out));
    if (plan->flip) flip(out, plan->window.height, plan->window.width);
    for (int32_t i = 0; i < plan->colours; i++)
        cf_jitter(plan->colour[i], plan->by[i], out, (size_t)plan->window.height * (size_t)plan->window.width);
    return CFX_OK;
}

/* ---- float32 --------------------------------------------------------------------------------------- */

CF_FOR_PROCESSORS static void normalise(const unsigned char *in, size_t n, const float *scale, const float *shift,
                                        float *out) {
    for (size_t i = 0; i < n; i++) out[i] = (float)in[i] * scale[i] + shift[i];
}

/* A row's scales and shifts, so that the loop over a row needs no channels. */
static cfx_status spread_scales(cf_picture *p, int32_t columns) {
    if (columns <= p->columns) return CFX_OK;
    CF_TRY(cf_realloc((void **)&p->scale, (size_t)columns * 3 * 2 * sizeof(float)));
    p->shift = p->scale + (size_t)columns * 3;
    p->columns = columns;
    for (int32_t i = 0; i < columns * 3; i++) {
        p->scale[i] = p->transform->scale[i % 3];
        p->shift[i] = p->transform->shift[i % 3];
    }
    return CFX_OK;
}

static cfx_status make_floats(cf_picture *p, float *out) {
    const cf_rect w = p->plan.window;
    const size_t row = (size_t)w.width * 3;
    CF_TRY(spread_scales(p, w.width));
    CF_TRY(make_room(&p->resized, row * (size_t)w.height));
    CF_TRY(make_bytes(p, p->resized.data));
    for (size_t y = 0; y < (size_t)w.height; y++)
        normalise(p->resized.data + y * row, row, p->scale, p->shift, out + y * row);
    return CFX_OK;
}

cfx_status cf_picture_write(cf_picture *p, void *out) {
    const cfx_status status = p->transform->dtype == CFX_UINT8 ? make_bytes(p, out) : make_floats(p, out);
    give_back(&p->file);
    give_back(&p->decoded);
    give_back(&p->resized);
    return status;
}

void cf_picture_free(cf_picture *p) {
    cf_jpeg_free(p->jpeg);
    cf_resize_free(&p->resize);
    free(p->file.data);
    free(p->decoded.data);
    free(p->resized.data);
    free(p->scale);
    *p = (cf_picture){0};
}

/* ---- one file and a tensor -------------------------------------------------------------------------- */

static cfx_status read_image(cfx_device *device, cf_picture *p, const char *path, uint64_t seed, cfx_tensor *out) {
    void *data = NULL;
    CF_TRY(cf_picture_open(p, path, (cf_draw){seed, 0, 0}));
    const int64_t shape[3] = {p->plan.window.height, p->plan.window.width, 3};
    size_t bytes;
    if (!cf_shape_bytes(p->transform->dtype, 3, shape, &bytes)) return cf_fail(CFX_EMEMORY, "%s: too large", path);
    CF_TRY(cf_alloc(bytes, &data));
    cfx_status status = cf_picture_write(p, data);
    if (status != CFX_OK) cf_fail_in(status, path);
    else status = cfx_from_host(device, p->transform->dtype, 3, shape, data, out);
    free(data);
    return status;
}

CFX_API cfx_status cfx_image_read(cfx_device *device, const char *path, const cfx_image_options *options, uint64_t seed,
                                  cfx_tensor *out) {
    if (!device || !path || !out) return cf_fail(CFX_EARG, "image_read: device, path or out is NULL");
    cf_transform transform;
    cfx_status status = cf_transform_read(options, &transform);
    if (status != CFX_OK) return cf_fail_in(status, "image_read");
    cf_picture p = {.transform = &transform};
    status = read_image(device, &p, path, seed, out);
    cf_picture_free(&p);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "image_read");
}

CFX_API cfx_status cfx_image_write(const char *path, const cfx_tensor *x, int32_t quality) {
    enum { MOST_SIDE = 65500 /* libjpeg's */ };
    if (!path || !x || !x->_buffer) return cf_fail(CFX_EARG, "image_write: path or x is NULL, or x has no value");
    const int64_t channels = x->_ndim == 3 ? x->_shape[2] : 1;
    if (x->_dtype != CFX_UINT8 || (x->_ndim != 2 && x->_ndim != 3) || (channels != 1 && channels != 3))
        return cf_fail(CFX_EARG, "image_write: expected uint8 of [height, width], with 1 or 3 channels");
    for (int d = 0; d < 2; d++)
        if (x->_shape[d] < 1 || x->_shape[d] > MOST_SIDE)
            return cf_fail(CFX_EARG, "image_write: expected 1 to %d rows and columns", MOST_SIDE);
    if (quality < 1 || quality > 100)
        return cf_fail(CFX_EARG, "image_write: quality is %d; expected 1 to 100", quality);
    const size_t bytes = (size_t)x->_shape[0] * (size_t)x->_shape[1] * (size_t)channels;
    void *pixels = NULL;
    CF_TRY(cf_alloc(bytes, &pixels));
    cfx_status status = cfx_read(x, pixels, bytes);
    if (status == CFX_OK)
        status = cf_jpeg_write(path, pixels, (int32_t)x->_shape[0], (int32_t)x->_shape[1], (int32_t)channels, quality);
    free(pixels);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "image_write");
}
