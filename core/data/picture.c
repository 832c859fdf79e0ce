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

/* Both sides, and what has to be done. */
typedef struct sides {
    side rows, columns;
    int keeps_size; /* nothing is resized */
    int fills;      /* the window: there is no black */
} sides;

static sides plan_sides(const cf_picture *p) {
    const cf_plan *plan = &p->plan;
    sides s = {.rows = plan_side(plan->decode, p->height, plan->box.y, plan->box.height, plan->height, plan->window.y,
                                 plan->window.height),
               .columns = plan_side(plan->decode, p->width, plan->box.x, plan->box.width, plan->width, plan->window.x,
                                    plan->window.width)};
    s.keeps_size = plan->decode == 1 && plan->height == plan->box.height && plan->width == plan->box.width;
    if (s.keeps_size) {
        s.rows = keep_size(s.rows);
        s.columns = keep_size(s.columns);
    }
    s.fills = s.rows.scale.count == plan->window.height && s.columns.scale.count == plan->window.width;
    if (plan->flip) s.columns.before = plan->window.width - s.columns.scale.count - s.columns.before;
    return s;
}

static cf_rect part_of(const sides *s) {
    return (cf_rect){s->columns.base + s->columns.from, s->rows.base + s->rows.from, s->columns.count, s->rows.count};
}

static cfx_status next_row(void *jpeg, unsigned char *row) { return cf_jpeg_next(jpeg, row); }

static cfx_status begin_resize(cf_picture *p, const sides *s) {
    CF_TRY(cf_jpeg_begin(p->jpeg, p->plan.decode, part_of(s)));
    return cf_resize_begin(&p->resize, &s->rows.scale, &s->columns.scale, p->plan.flip,
                           (cf_row_source){next_row, p->jpeg});
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

CF_FOR_PROCESSORS static void to_bytes(const float *restrict in, size_t n, unsigned char *restrict out) {
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)(int32_t)(in[i] + 0.5f);
}

/* The picture in the window, without the black around it. */
static cfx_status make_pixels(cf_picture *p, const sides *s, unsigned char *out) {
    const size_t row = (size_t)s->columns.scale.count * 3;
    if (s->keeps_size) {
        CF_TRY(cf_jpeg_decode(p->jpeg, 1, part_of(s), out));
        if (p->plan.flip) flip(out, s->rows.count, s->columns.count);
        return CFX_OK;
    }
    CF_TRY(begin_resize(p, s));
    for (int32_t y = 0; y < s->rows.scale.count; y++, out += row) {
        const float *from;
        CF_TRY(cf_resize_next(&p->resize, &from));
        to_bytes(from, row, out);
    }
    return CFX_OK;
}

static cfx_status make_bytes(cf_picture *p, const sides *s, unsigned char *out) {
    const cf_plan *plan = &p->plan;
    CF_TRY(make_pixels(p, s, out));
    if (!s->fills) pad(plan, &s->rows, &s->columns, out);
    for (int32_t i = 0; i < plan->colours; i++)
        cf_jitter(plan->colour[i], plan->by[i], out, (size_t)plan->window.height * (size_t)plan->window.width);
    return CFX_OK;
}

/* ---- float32 --------------------------------------------------------------------------------------- */

CF_FOR_PROCESSORS static void normalise(const unsigned char *in, size_t n, const float *scale, const float *shift,
                                        float *out) {
    for (size_t i = 0; i < n; i++) out[i] = (float)in[i] * scale[i] + shift[i];
}

/* Likewise, of what is not rounded to bytes yet. */
CF_FOR_PROCESSORS static void round_and_normalise(const float *in, size_t n, const float *scale, const float *shift,
                                                  float *out) {
    for (size_t i = 0; i < n; i++) out[i] = (float)(int32_t)(in[i] + 0.5f) * scale[i] + shift[i];
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

static cfx_status floats_of_bytes(cf_picture *p, const sides *s, size_t row, float *out) {
    const size_t height = (size_t)p->plan.window.height;
    CF_TRY(make_room(&p->resized, row * height));
    CF_TRY(make_bytes(p, s, p->resized.data));
    for (size_t y = 0; y < height; y++) normalise(p->resized.data + y * row, row, p->scale, p->shift, out + y * row);
    return CFX_OK;
}

/* A sample lies in memory that was used long ago.  Its next row comes to the caches while that row is being made. */
static void fetch(const float *row, size_t n) {
    enum { LINE = 64 / sizeof(float) };
    for (size_t i = 0; i < n; i += LINE) __builtin_prefetch(row + i, 1);
}

/* Where a row needs nothing else it does not become bytes first: the values are the same. */
static cfx_status make_floats(cf_picture *p, const sides *s, float *out) {
    const size_t row = (size_t)p->plan.window.width * 3;
    CF_TRY(spread_scales(p, p->plan.window.width));
    if (s->keeps_size || !s->fills || p->plan.colours) return floats_of_bytes(p, s, row, out);
    CF_TRY(begin_resize(p, s));
    for (int32_t y = 0; y < s->rows.scale.count; y++, out += row) {
        const float *from;
        fetch(out, row);
        CF_TRY(cf_resize_next(&p->resize, &from));
        round_and_normalise(from, row, p->scale, p->shift, out);
    }
    return CFX_OK;
}

cfx_status cf_picture_write(cf_picture *p, void *out) {
    const sides s = plan_sides(p);
    const cfx_status status = p->transform->dtype == CFX_UINT8 ? make_bytes(p, &s, out) : make_floats(p, &s, out);
    give_back(&p->file);
    give_back(&p->resized);
    return status;
}

void cf_picture_free(cf_picture *p) {
    cf_jpeg_free(p->jpeg);
    cf_resize_free(&p->resize);
    free(p->file.data);
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
