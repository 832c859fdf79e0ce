/* idx.c: IDX files, the format of MNIST (LeCun, "The MNIST database").
 *
 *   2 bytes 0, 1 byte type, 1 byte number of dimensions; each dimension as 4 bytes; the values, row-major.
 *
 * Everything is big endian.  Types that Conflux lacks (signed byte, short) are widened to int32.  The header
 * of a hostile or damaged file can ask for any amount of memory: a plain file's size is compared with it
 * first, and the values of a gzip file are read into a buffer that grows only as they come.
 */
#include "data/reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC_BYTES = 4, DIM_BYTES = 4, FIRST_READ = 1024 * 1024 };

typedef struct idx_type {
    int code, bytes; /* as stored */
    cfx_dtype dtype; /* as read */
} idx_type;

static const idx_type types[] = {
    {0x08, 1, CFX_UINT8}, {0x09, 1, CFX_INT32},   {0x0B, 2, CFX_INT32},
    {0x0C, 4, CFX_INT32}, {0x0D, 4, CFX_FLOAT32}, {0x0E, 8, CFX_FLOAT64},
};

typedef struct idx_header {
    const idx_type *type;
    int32_t ndim;
    int64_t shape[CFX_MAX_DIMS];
    size_t count; /* values */
    size_t bytes; /* of all values, as stored */
} idx_header;

static const idx_type *find_type(int code) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].code == code) return &types[i];
    return NULL;
}

static uint32_t big32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static cfx_status too_short(const cf_reader *reader, size_t expected, size_t got) {
    return cf_fail(CFX_EIO, "%s: truncated: expected %zu bytes, got %zu%s", reader->path, expected, got,
                   reader->cut ? " (the gzip data is cut)" : "");
}

/* Reads exactly `bytes` bytes; `expected` is what the file must hold at least, for the message. */
static cfx_status read_all(cf_reader *reader, void *dst, size_t bytes, size_t expected) {
    size_t got;
    const cfx_status status = cf_reader_read(reader, dst, bytes, &got);
    if (reader->cut || (status == CFX_OK && got < bytes)) return too_short(reader, expected, reader->given);
    return status;
}

static cfx_status read_header(cf_reader *reader, idx_header *h) {
    unsigned char magic[MAGIC_BYTES], dims[CFX_MAX_DIMS * DIM_BYTES];
    CF_TRY(read_all(reader, magic, sizeof magic, sizeof magic));
    h->type = find_type(magic[2]);
    if (magic[0] || magic[1] || !h->type)
        return cf_fail(CFX_EIO, "%s: not an IDX file: it starts with %02x %02x %02x %02x", reader->path, magic[0],
                       magic[1], magic[2], magic[3]);
    h->ndim = magic[3];
    if (h->ndim < 1 || h->ndim > CFX_MAX_DIMS)
        return cf_fail(CFX_EIO, "%s: %d dimensions; expected 1 to %d", reader->path, h->ndim, CFX_MAX_DIMS);
    const size_t header = MAGIC_BYTES + (size_t)h->ndim * DIM_BYTES;
    CF_TRY(read_all(reader, dims, header - MAGIC_BYTES, header));
    h->count = 1;
    int fits = 1;
    for (int32_t d = 0; d < h->ndim; d++) {
        h->shape[d] = big32(dims + d * DIM_BYTES);
        fits = fits && cf_mul_size(h->count, (size_t)h->shape[d], &h->count);
    }
    size_t all;
    fits = fits && cf_mul_size(h->count, (size_t)h->type->bytes, &h->bytes) && cf_add_size(h->bytes, header, &all);
    if (!fits || all > INT64_MAX / 4) /* widened values take up to four times as much */
        return cf_fail(CFX_EIO, "%s: the dimensions are larger than any file", reader->path);
    if (reader->plain < 0) return CFX_OK;
    if (all > (uint64_t)reader->plain) return too_short(reader, all, (size_t)reader->plain);
    if (all < (uint64_t)reader->plain)
        return cf_fail(CFX_EIO, "%s: %" PRIu64 " bytes after the last value (expected %zu bytes, got %" PRId64 ")",
                       reader->path, (uint64_t)reader->plain - all, all, reader->plain);
    return CFX_OK;
}

/* Reads the values as stored into *out, which the caller frees, also after a failure. */
static cfx_status read_values(cf_reader *reader, const idx_header *h, unsigned char **out) {
    const size_t expected = reader->given + h->bytes;
    size_t room = h->bytes, have = 0;
    if (reader->plain < 0 && room > FIRST_READ) room = FIRST_READ;
    CF_TRY(cf_alloc(room, (void **)out));
    for (;;) {
        CF_TRY(read_all(reader, *out + have, room - have, expected));
        have = room;
        if (have == h->bytes) break;
        room = room > h->bytes / 2 ? h->bytes : room * 2;
        void *grown = *out;
        if (cf_realloc(&grown, room) != CFX_OK) return cf_fail_in(CFX_EMEMORY, reader->path);
        *out = grown;
    }
    /* One byte more finds what does not belong here, and makes zlib check the sum at the end. */
    unsigned char extra;
    size_t got;
    CF_TRY(cf_reader_read(reader, &extra, 1, &got));
    if (got) return cf_fail(CFX_EIO, "%s: data after the last value (expected %zu bytes)", reader->path, expected);
    return CFX_OK;
}

static void swap32(unsigned char *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t v = big32(values + 4 * i);
        memcpy(values + 4 * i, &v, 4);
    }
}

static void swap64(unsigned char *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char *p = values + 8 * i;
        const uint64_t v = (uint64_t)big32(p) << 32 | big32(p + 4);
        memcpy(values + 8 * i, &v, 8);
    }
}

/* Signed bytes or shorts into a new buffer of int32. */
static cfx_status widen(const idx_header *h, unsigned char **values) {
    int32_t *wide;
    CF_TRY(cf_alloc(h->count * sizeof *wide, (void **)&wide));
    const unsigned char *p = *values;
    for (size_t i = 0; i < h->count; i++)
        wide[i] = h->type->bytes == 1 ? (int8_t)p[i] : (int16_t)(uint16_t)(p[2 * i] << 8 | p[2 * i + 1]);
    free(*values);
    *values = (unsigned char *)wide;
    return CFX_OK;
}

static cfx_status to_host_order(const idx_header *h, unsigned char **values) {
    if (h->type->bytes == 4) swap32(*values, h->count);
    if (h->type->bytes == 8) swap64(*values, h->count);
    if (h->type->dtype == CFX_INT32 && h->type->bytes < 4) return widen(h, values);
    return CFX_OK;
}

CFX_API cfx_status cfx_idx_read(cfx_device *device, const char *path, cfx_tensor *out) {
    if (!device || !path || !out) return cf_fail(CFX_EARG, "idx_read: device, path or out is NULL");
    cf_reader reader;
    idx_header header;
    unsigned char *values = NULL;
    cfx_status status = cf_reader_open(cfx_device_context(device), path, &reader);
    if (status != CFX_OK) return cf_fail_in(status, "idx_read");
    status = read_header(&reader, &header);
    if (status == CFX_OK) status = read_values(&reader, &header, &values);
    if (status == CFX_OK) status = to_host_order(&header, &values);
    cf_reader_close(&reader);
    if (status == CFX_OK) status = cfx_from_host(device, header.type->dtype, header.ndim, header.shape, values, out);
    free(values);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "idx_read");
}
