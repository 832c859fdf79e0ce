/* jpeg.c: see jpeg.h.
 *
 * libjpeg leaves by longjmp where it fails.  Each public function here sets the place to return to, and what must outlive
 * the jump lies in the decoder, not in its variables.
 */
#include "data/jpeg.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "base/locale.h"
#include "base/replace.h"

enum {
    MARGIN_COLUMNS = 4, /* a chroma sample reaches two columns far, and libjpeg upsamples so few of them otherwise */
    MARGIN_ROWS = 2,
    FULL_CHROMA = 90 /* from this quality on it would show */
};

typedef struct failure {
    struct jpeg_error_mgr manager; /* first: libjpeg knows this alone */
    jmp_buf escape;
    cfx_status status;
    char text[JMSG_LENGTH_MAX];
} failure;

struct cf_jpeg {
    struct jpeg_decompress_struct d;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    failure failure;
    unsigned char *memory, *row; /* row: of what libjpeg decodes, in memory */
    size_t room;
    cf_rect part; /* x: in that row; height: rows that are still to come */
};

/* ---- failures -------------------------------------------------------------------------------------- */

static void leave(j_common_ptr c) {
    failure *f = (failure *)c->err;
    f->status = c->err->msg_code == JERR_OUT_OF_MEMORY ? CFX_EMEMORY : CFX_EIO;
    c->err->format_message(c, f->text);
    longjmp(f->escape, 1);
}

static void leave_with(j_common_ptr c, const char *text) {
    failure *f = (failure *)c->err;
    f->status = CFX_EIO;
    cf_format(f->text, sizeof f->text, "%s", text);
    longjmp(f->escape, 1);
}

static void keep_quiet(j_common_ptr c, int level) {
    (void)c, (void)level; /* warnings and traces: what was decoded is a picture */
}

static struct jpeg_error_mgr *set_failure(failure *f) {
    jpeg_std_error(&f->manager);
    f->manager.error_exit = leave;
    f->manager.emit_message = keep_quiet;
    return &f->manager;
}

static cfx_status failed(const failure *f) { return cf_fail(f->status, "%s", f->text); }

/* ---- where bytes come from -------------------------------------------------------------------------- */

static void begin_source(j_decompress_ptr d) { (void)d; }
static void end_source(j_decompress_ptr d) { (void)d; }

/* All bytes are there from the start. */
static boolean fill_source(j_decompress_ptr d) {
    leave_with((j_common_ptr)d, "truncated");
    return FALSE;
}

static void skip_source(j_decompress_ptr d, long bytes) {
    if (bytes <= 0) return;
    if ((size_t)bytes > d->src->bytes_in_buffer) leave_with((j_common_ptr)d, "truncated");
    d->src->next_input_byte += bytes;
    d->src->bytes_in_buffer -= (size_t)bytes;
}

/* Each scan costs a pass over the picture, and takes but a few bytes. */
static void count_scans(j_common_ptr c) {
    const j_decompress_ptr d = (j_decompress_ptr)c;
    if (d->input_scan_number > CF_JPEG_MOST_SCANS) leave_with(c, "more than 500 scans");
}

/* ---- decoders -------------------------------------------------------------------------------------- */

cfx_status cf_jpeg_new(cf_jpeg **out) {
    cf_jpeg *j = NULL;
    *out = NULL;
    CF_TRY(cf_alloc_zero(1, sizeof *j, (void **)&j));
    j->d.err = set_failure(&j->failure);
    if (setjmp(j->failure.escape)) {
        const cfx_status status = failed(&j->failure);
        cf_jpeg_free(j);
        return status;
    }
    jpeg_create_decompress(&j->d);
    j->source = (struct jpeg_source_mgr){.init_source = begin_source,
                                         .fill_input_buffer = fill_source,
                                         .skip_input_data = skip_source,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = end_source};
    j->progress.progress_monitor = count_scans;
    j->d.src = &j->source;
    j->d.progress = &j->progress;
    *out = j;
    return CFX_OK;
}

void cf_jpeg_free(cf_jpeg *j) {
    if (!j) return;
    if (j->d.mem) jpeg_destroy_decompress(&j->d);
    free(j->memory);
    free(j);
}

/* Whether an end marker comes behind the header.  In the data an FF is followed by a 0 or a restart marker. */
static int has_end(const struct jpeg_source_mgr *s) {
    const unsigned char *from = s->next_input_byte;
    size_t n = s->bytes_in_buffer;
    while (n >= 2) {
        const unsigned char *mark = memrchr(from, 0xD9, n);
        if (!mark || mark == from) return 0;
        if (mark[-1] == 0xFF) return 1;
        n = (size_t)(mark - from);
    }
    return 0;
}

static cfx_status check_picture(const struct jpeg_decompress_struct *d) {
    if (d->num_components != 1 && d->num_components != 3 && d->num_components != 4)
        return cf_fail(CFX_EIO, "%d colour components; expected 1, 3 or 4", d->num_components);
    if ((uint64_t)d->image_width * d->image_height > CF_JPEG_MOST_PIXELS)
        return cf_fail(CFX_EIO, "%u x %u pixels are more than %d", d->image_width, d->image_height,
                       CF_JPEG_MOST_PIXELS);
    return has_end(d->src) ? CFX_OK : cf_fail(CFX_EIO, "truncated: there is no end marker");
}

cfx_status cf_jpeg_open(cf_jpeg *j, const unsigned char *bytes, size_t n, int32_t *width, int32_t *height) {
    if (n == 0) return cf_fail(CFX_EIO, "empty");
    if (setjmp(j->failure.escape)) return failed(&j->failure);
    jpeg_abort_decompress(&j->d); /* of what was opened before */
    j->source.next_input_byte = bytes;
    j->source.bytes_in_buffer = n;
    jpeg_read_header(&j->d, TRUE);
    *width = (int32_t)j->d.image_width;
    *height = (int32_t)j->d.image_height;
    return check_picture(&j->d);
}

/* ---- pixels ---------------------------------------------------------------------------------------- */

/* As Pillow: Adobe's programs write inverted values, and nobody else writes CMYK. */
static void rgb_of_cmyk(const unsigned char *cmyk, int32_t n, unsigned char *rgb) {
    for (int32_t i = 0; i < n; i++, cmyk += 4, rgb += 3) {
        const int white = cmyk[3];
        for (int k = 0; k < 3; k++) {
            const int product = (255 - cmyk[k]) * white + 128;
            rgb[k] = (unsigned char)(white - ((product + (product >> 8)) >> 8));
        }
    }
}

/* Asks for columns around the part; libjpeg takes more, to a block's edge.  Returns the first one's place.  Of a
 * progressive file all are taken, since libjpeg smooths blocks that lack scans by those around, far beyond a margin. */
static int32_t crop_columns(struct jpeg_decompress_struct *d, cf_rect part) {
    const int32_t from = part.x > MARGIN_COLUMNS ? part.x - MARGIN_COLUMNS : 0;
    int32_t to = part.x + part.width + MARGIN_COLUMNS;
    if (to > (int32_t)d->output_width) to = (int32_t)d->output_width;
    JDIMENSION first = (JDIMENSION)from, width = (JDIMENSION)(to - from);
    if (width == d->output_width || d->progressive_mode) return 0;
    jpeg_crop_scanline(d, &first, &width);
    return (int32_t)first;
}

static void begin_decode(cf_jpeg *j, int32_t scale) {
    struct jpeg_decompress_struct *d = &j->d;
    d->scale_num = 1;
    d->scale_denom = (unsigned)scale;
    d->dct_method = JDCT_ISLOW;
    d->do_fancy_upsampling = TRUE;
    d->out_color_space = d->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(d);
}

/* libjpeg writes rows that are aligned past the caches, out of which they are read again at once. */
static int is_aligned(const unsigned char *row) { return (uintptr_t)row % 16 == 0; }

static cfx_status take_row(cf_jpeg *j) {
    enum { MISALIGNED = 8 };
    const size_t need = (size_t)j->d.output_width * (size_t)j->d.output_components + MISALIGNED;
    if (need <= j->room) return CFX_OK;
    CF_TRY(cf_realloc((void **)&j->memory, need));
    j->row = j->memory + MISALIGNED;
    j->room = need;
    return CFX_OK;
}

cfx_status cf_jpeg_begin(cf_jpeg *j, int32_t scale, cf_rect part) {
    if (setjmp(j->failure.escape)) return failed(&j->failure);
    begin_decode(j, scale);
    j->part = part;
    j->part.x -= crop_columns(&j->d, part);
    CF_TRY(take_row(j));
    /* Rows that are skipped are not upsampled, so that those above the part are read. */
    int32_t read = part.y < MARGIN_ROWS || j->d.progressive_mode ? part.y : MARGIN_ROWS;
    if (part.y > read) jpeg_skip_scanlines(&j->d, (JDIMENSION)(part.y - read));
    for (; read > 0; read--) jpeg_read_scanlines(&j->d, &j->row, 1);
    return CFX_OK;
}

cfx_status cf_jpeg_next(cf_jpeg *j, unsigned char *rgb) {
    struct jpeg_decompress_struct *d = &j->d;
    const int components = d->output_components;
    if (setjmp(j->failure.escape)) return failed(&j->failure);
    if (components == 3 && (int32_t)d->output_width == j->part.width && !is_aligned(rgb)) {
        jpeg_read_scanlines(d, &rgb, 1);
    } else {
        jpeg_read_scanlines(d, &j->row, 1);
        const unsigned char *from = j->row + (size_t)j->part.x * (size_t)components;
        if (components == 3) memcpy(rgb, from, (size_t)j->part.width * 3);
        else rgb_of_cmyk(from, j->part.width, rgb);
    }
    if (--j->part.height == 0) jpeg_abort_decompress(d); /* rows below are not looked at */
    return CFX_OK;
}

cfx_status cf_jpeg_decode(cf_jpeg *j, int32_t scale, cf_rect part, unsigned char *rgb) {
    CF_TRY(cf_jpeg_begin(j, scale, part));
    for (int32_t y = 0; y < part.height; y++) CF_TRY(cf_jpeg_next(j, rgb + (size_t)y * (size_t)part.width * 3));
    return CFX_OK;
}

/* ---- files ----------------------------------------------------------------------------------------- */

/* The file that is written, a bufferful at a time. */
typedef struct target {
    struct jpeg_destination_mgr manager; /* first: libjpeg knows this alone */
    cf_replace *file;
    unsigned char buffer[1 << 14];
} target;

static void rewind_buffer(target *t) {
    t->manager.next_output_byte = t->buffer;
    t->manager.free_in_buffer = sizeof t->buffer;
}

static void begin_target(j_compress_ptr c) { rewind_buffer((target *)c->dest); }

static void put_bytes(j_compress_ptr c, size_t n) {
    target *t = (target *)c->dest;
    failure *f = (failure *)c->err;
    f->status = cf_replace_write(t->file, t->buffer, n);
    if (f->status != CFX_OK) longjmp(f->escape, 1); /* the message is there */
    rewind_buffer(t);
}

static boolean empty_buffer(j_compress_ptr c) {
    put_bytes(c, sizeof((target *)c->dest)->buffer);
    return TRUE;
}

static void end_target(j_compress_ptr c) { put_bytes(c, sizeof((target *)c->dest)->buffer - c->dest->free_in_buffer); }

static cfx_status encode(cf_replace *file, const unsigned char *pixels, int32_t height, int32_t width, int32_t channels,
                         int32_t quality) {
    struct jpeg_compress_struct c;
    failure f;
    target t = {.manager = {.init_destination = begin_target,
                            .empty_output_buffer = empty_buffer,
                            .term_destination = end_target},
                .file = file};
    f.text[0] = '\0';
    c.err = set_failure(&f);
    if (setjmp(f.escape)) {
        jpeg_destroy_compress(&c);
        return *f.text ? cf_fail(f.status, "%s: %s", file->path, f.text) : f.status;
    }
    jpeg_create_compress(&c);
    c.dest = &t.manager;
    c.image_width = (JDIMENSION)width;
    c.image_height = (JDIMENSION)height;
    c.input_components = channels;
    c.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, quality, TRUE);
    if (channels == 3 && quality >= FULL_CHROMA) c.comp_info[0].h_samp_factor = c.comp_info[0].v_samp_factor = 1;
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        const size_t at = (size_t)c.next_scanline * (size_t)width * (size_t)channels;
        JSAMPROW row = (JSAMPROW)(pixels + at);
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return CFX_OK;
}

cfx_status cf_jpeg_write(const char *path, const unsigned char *pixels, int32_t height, int32_t width, int32_t channels,
                         int32_t quality) {
    cf_replace file;
    CF_TRY(cf_replace_open(path, &file));
    cfx_status status = encode(&file, pixels, height, width, channels, quality);
    if (status == CFX_OK) status = cf_replace_commit(&file);
    cf_replace_close(&file);
    return status;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const char *cf_jpeg_about(void) { return "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION); }
