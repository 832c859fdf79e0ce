/* safetensors.c: tensors by name in a file that other programs read (huggingface/safetensors).
 *
 *   8 bytes         length N of the header, little endian
 *   N bytes         JSON: {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3],
 *                   "data_offsets": [begin, end]}, ...}, padded with spaces
 *   the rest        the values, row-major, little endian; offsets count from here, without holes or overlap
 *
 * A file is data from outside: every number in the header is checked against the file before it is used, and a
 * file that says anything twice or leaves a byte unexplained is refused, as the format demands.
 *
 * Writing puts wide types first, so that every tensor is aligned to its type (the header's padding aligns the
 * first), and names in order of their bytes, so that equal contents give equal files.  A reader's tensors are
 * numbered as they lie in the file.
 */
#include "base/locale.h"
#include "base/replace.h"
#include "base/status.h"
#include "io/json.h"
#include "tensor/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read and written as they lie in memory");

enum {
    LENGTH_BYTES = 8,
    HEADER_ALIGN = 8,
    HEADER_LIMIT = 100 * 1000 * 1000 /* that of the reference implementation */
};

static const char META[] = "__metadata__";

static const char *const dtype_names[CFX_DTYPES] = {
    [CFX_BOOL] = "BOOL",   [CFX_UINT8] = "U8",      [CFX_INT32] = "I32",   [CFX_INT64] = "I64",
    [CFX_FLOAT16] = "F16", [CFX_BFLOAT16] = "BF16", [CFX_FLOAT32] = "F32", [CFX_FLOAT64] = "F64",
};

/* Integers of other programs that Conflux has no dtype for: a reader gets int32, which holds all their
 * values. */
typedef struct narrow {
    const char *name;
    size_t size;
    void (*widen)(size_t n, const void *from, int32_t *to);
} narrow;

#define WIDEN(name, type)                                            \
    static void name(size_t n, const void *from, int32_t *to) {      \
        for (size_t i = 0; i < n; i++) {                             \
            type v; /* a file aligns nothing */                      \
            memcpy(&v, (const char *)from + i * sizeof v, sizeof v); \
            to[i] = (int32_t)v;                                      \
        }                                                            \
    }
WIDEN(widen_int8, int8_t)
WIDEN(widen_int16, int16_t)
WIDEN(widen_uint16, uint16_t)

static const narrow narrows[] = {{"I8", 1, widen_int8}, {"I16", 2, widen_int16}, {"U16", 2, widen_uint16}};
enum { NARROWS = sizeof narrows / sizeof *narrows };

typedef struct entry {
    char *name;
    int32_t dtype, ndim;
    const narrow *narrow; /* the file's own type, or NULL: values of dtype */
    int64_t shape[CFX_MAX_DIMS];
    int64_t begin, end; /* data offsets */
} entry;

typedef struct pair {
    char *key, *value;
} pair;

struct cfx_safetensors {
    char *path;
    int fd; /* kept to notice that the file was cut after it was mapped */
    unsigned char *map;
    size_t size, data; /* of the file; where the values start */
    entry *entries;
    pair *pairs;
    size_t count, room, n_pairs, pair_room;
};

/* ---- reading: the header --------------------------------------------------------------------------- */

/* Makes room for one more element, zeroed; *items may move. */
static cfx_status grow(void **items, size_t size, size_t count, size_t *room) {
    if (count == *room) {
        const size_t more = *room ? *room * 2 : 16;
        size_t bytes;
        if (!cf_mul_size(more, size, &bytes)) return cf_fail(CFX_EMEMORY, "out of host memory: %zu entries", more);
        CF_TRY(cf_realloc(items, bytes));
        *room = more;
    }
    memset((char *)*items + count * size, 0, size);
    return CFX_OK;
}

static cfx_status read_pairs(cfx_safetensors *f, cf_json *j) {
    CF_TRY(cf_json_open(j, '{'));
    for (;;) {
        int more;
        CF_TRY(cf_json_more(j, &more));
        if (!more) return CFX_OK;
        CF_TRY(grow((void **)&f->pairs, sizeof *f->pairs, f->n_pairs, &f->pair_room));
        pair *p = &f->pairs[f->n_pairs++];
        CF_TRY(cf_json_key(j, &p->key));
        CF_TRY(cf_json_string(j, &p->value));
    }
}

static cfx_status read_dtype(cf_json *j, entry *e) {
    char *name;
    CF_TRY(cf_json_string(j, &name));
    e->dtype = -1;
    for (int32_t d = 0; d < CFX_DTYPES; d++)
        if (strcmp(name, dtype_names[d]) == 0) e->dtype = d;
    for (int i = 0; i < NARROWS; i++) {
        if (strcmp(name, narrows[i].name) != 0) continue;
        e->narrow = &narrows[i];
        e->dtype = CFX_INT32;
    }
    const cfx_status status =
        e->dtype < 0 ? cf_fail(CFX_EIO, "tensor '%s' has dtype '%s', which Conflux does not know", e->name, name)
                     : CFX_OK;
    free(name);
    return status;
}

static cfx_status read_shape(cf_json *j, entry *e) {
    CF_TRY(cf_json_open(j, '['));
    for (;;) {
        int more;
        CF_TRY(cf_json_more(j, &more));
        if (!more) return CFX_OK;
        if (e->ndim == CFX_MAX_DIMS)
            return cf_fail(CFX_EIO, "tensor '%s' has more than %d dimensions", e->name, CFX_MAX_DIMS);
        CF_TRY(cf_json_integer(j, &e->shape[e->ndim++]));
    }
}

static cfx_status read_offsets(cf_json *j, entry *e) {
    int64_t offsets[2];
    int more;
    CF_TRY(cf_json_open(j, '['));
    for (int i = 0; i < 2; i++) {
        CF_TRY(cf_json_more(j, &more));
        if (!more) return cf_fail(CFX_EIO, "tensor '%s': data_offsets must be [begin, end]", e->name);
        CF_TRY(cf_json_integer(j, &offsets[i]));
    }
    CF_TRY(cf_json_more(j, &more));
    if (more) return cf_fail(CFX_EIO, "tensor '%s': data_offsets must be [begin, end]", e->name);
    e->begin = offsets[0];
    e->end = offsets[1];
    return CFX_OK;
}

/* The fields of one tensor, each exactly once, in any order; unknown ones are left to later versions. */
static cfx_status read_entry(cf_json *j, entry *e) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    static cfx_status (*const readers[])(cf_json *, entry *) = {read_dtype, read_shape, read_offsets};
    enum { FIELDS = 3 };
    int seen[FIELDS] = {0}, more;
    CF_TRY(cf_json_open(j, '{'));
    for (;;) {
        CF_TRY(cf_json_more(j, &more));
        if (!more) break;
        char *key;
        CF_TRY(cf_json_key(j, &key));
        int i = 0;
        while (i < FIELDS && strcmp(key, fields[i]) != 0) i++;
        free(key);
        if (i == FIELDS) {
            CF_TRY(cf_json_skip(j));
            continue;
        }
        if (seen[i]++) return cf_fail(CFX_EIO, "tensor '%s' has two fields '%s'", e->name, fields[i]);
        CF_TRY(readers[i](j, e));
    }
    for (int i = 0; i < FIELDS; i++)
        if (!seen[i]) return cf_fail(CFX_EIO, "tensor '%s' has no field '%s'", e->name, fields[i]);
    return CFX_OK;
}

static cfx_status read_header(cfx_safetensors *f, const char *text, size_t length) {
    cf_json json, *j = &json;
    int meta = 0;
    cf_json_start(j, text, length);
    CF_TRY(cf_json_open(j, '{'));
    for (;;) {
        int more;
        CF_TRY(cf_json_more(j, &more));
        if (!more) return cf_json_end(j);
        char *name;
        CF_TRY(cf_json_key(j, &name));
        if (strcmp(name, META) == 0) {
            free(name);
            if (meta++) return cf_fail(CFX_EIO, "two fields '%s'", META);
            CF_TRY(read_pairs(f, j));
            continue;
        }
        const cfx_status status = grow((void **)&f->entries, sizeof *f->entries, f->count, &f->room);
        if (status != CFX_OK) free(name);
        CF_TRY(status);
        entry *e = &f->entries[f->count++];
        e->name = name;
        CF_TRY(read_entry(j, e));
    }
}

/* ---- reading: what the header must keep to ---------------------------------------------------------- */

static int by_key(const void *a, const void *b) { return strcmp(((const pair *)a)->key, ((const pair *)b)->key); }

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

/* As they lie in the file; tensors without elements share a place and keep the order of their names. */
static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return by_name(a, b);
}

/* The bytes that dtype and shape ask for. */
static cfx_status check_extent(const entry *e) {
    size_t bytes;
    if (!cf_shape_bytes(e->dtype, e->ndim, e->shape, &bytes))
        return cf_fail(CFX_EIO, "tensor '%s': its shape is larger than any file", e->name);
    if (e->narrow) bytes = bytes / sizeof(int32_t) * e->narrow->size;
    if (e->end < e->begin || (size_t)(e->end - e->begin) != bytes)
        return cf_fail(CFX_EIO,
                       "tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] do not hold the %zu bytes of its shape",
                       e->name, e->begin, e->end, bytes);
    return CFX_OK;
}

/* Every name once, every byte of the data in exactly one tensor. */
static cfx_status check_entries(cfx_safetensors *f) {
    if (f->n_pairs) qsort(f->pairs, f->n_pairs, sizeof *f->pairs, by_key);
    for (size_t i = 1; i < f->n_pairs; i++)
        if (by_key(&f->pairs[i - 1], &f->pairs[i]) == 0)
            return cf_fail(CFX_EIO, "metadata has two values for '%s'", f->pairs[i].key);
    if (f->count) qsort(f->entries, f->count, sizeof *f->entries, by_name);
    for (size_t i = 1; i < f->count; i++)
        if (by_name(&f->entries[i - 1], &f->entries[i]) == 0)
            return cf_fail(CFX_EIO, "two tensors are named '%s'", f->entries[i].name);
    if (f->count) qsort(f->entries, f->count, sizeof *f->entries, by_offset);
    const int64_t held = (int64_t)(f->size - f->data);
    int64_t at = 0;
    for (size_t i = 0; i < f->count; i++) {
        const entry *e = &f->entries[i];
        CF_TRY(check_extent(e));
        if (e->begin != at)
            return cf_fail(CFX_EIO, "tensor '%s' starts at byte %" PRId64 " of the data; expected %" PRId64 " (%s)",
                           e->name, e->begin, at, e->begin < at ? "it overlaps another" : "a hole");
        if (e->end > held)
            return cf_fail(CFX_EIO, "truncated: tensor '%s' ends at byte %" PRId64 " of the data, which has %" PRId64,
                           e->name, e->end, held);
        at = e->end;
    }
    if (at != held)
        return cf_fail(CFX_EIO, "data after the last tensor: expected %" PRId64 " bytes of data, got %" PRId64, at,
                       held);
    return CFX_OK;
}

/* Says what a file is by its first bytes, if another program is known by them.  Read as the length of a header they are
 * absurd, so no safetensors file comes here. */
static cfx_status refuse_others(const uint8_t *start /* [LENGTH_BYTES] */) {
    const char *what = NULL, *how = NULL;
    if (memcmp(start, "PK\3\4", 4) == 0) {
        what = "a ZIP archive, such as PyTorch's .pt or NumPy's .npz";
        how = "safetensors.torch.save_file(state_dict, path) or safetensors.numpy.save_file";
    } else if (start[0] == 0x80 && start[1] >= 2 && start[1] <= 5) {
        what = "a Python pickle, such as an old .pt of PyTorch's";
        how = "safetensors.torch.save_file(state_dict, path)";
    } else if (memcmp(start, "\x93NUMPY", 6) == 0) {
        what = "a .npy of NumPy's";
        how = "safetensors.numpy.save_file({\"x\": array}, path)";
    } else if (memcmp(start, "\x89HDF\r\n\x1a\n", 8) == 0) {
        what = "an HDF5 file";
        how = "safetensors.numpy.save_file";
    }
    if (!what) return CFX_OK;
    return cf_fail(CFX_EIO, "not a safetensors file but %s: convert it in Python by %s", what, how);
}

/* ---- reading: files -------------------------------------------------------------------------------- */

/* Maps the file and finds its header. */
static cfx_status map_file(cfx_safetensors *f, size_t *length) {
    struct stat st;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would not return */
    if (f->fd < 0 || fstat(f->fd, &st) != 0) return cf_fail(CFX_EIO, "%s", cf_strerror(errno));
    if (!S_ISREG(st.st_mode)) return cf_fail(CFX_EIO, "not a regular file");
    if (st.st_size < LENGTH_BYTES)
        return cf_fail(CFX_EIO, "truncated: expected at least %d bytes, got %" PRId64, LENGTH_BYTES,
                       (int64_t)st.st_size);
    f->size = (size_t)st.st_size;
    void *map = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (map == MAP_FAILED) return cf_fail(CFX_EIO, "cannot map it: %s", cf_strerror(errno));
    f->map = map;
    uint64_t n = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) n |= (uint64_t)f->map[i] << (8 * i);
    if (n > HEADER_LIMIT) {
        CF_TRY(refuse_others(f->map));
        return cf_fail(CFX_EIO, "a header of %" PRIu64 " bytes (limit %d): not a safetensors file?", n, HEADER_LIMIT);
    }
    if (n > f->size - LENGTH_BYTES)
        return cf_fail(CFX_EIO, "truncated: expected a header of %" PRIu64 " bytes, got %zu", n,
                       f->size - LENGTH_BYTES);
    *length = (size_t)n;
    f->data = LENGTH_BYTES + *length;
    if (!n || f->map[LENGTH_BYTES] != '{') return cf_fail(CFX_EIO, "the header does not start with '{'");
    return CFX_OK;
}

CFX_API cfx_status cfx_safetensors_open(const char *path, cfx_safetensors **out) {
    if (!path || !out) return cf_fail(CFX_EARG, "safetensors_open: path or out is NULL");
    cfx_safetensors *f;
    CF_TRY(cf_alloc_zero(1, sizeof *f, (void **)&f));
    f->fd = -1;
    size_t length = 0;
    cfx_status status = cf_copy_string(path, &f->path);
    if (status == CFX_OK) status = map_file(f, &length);
    if (status == CFX_OK) status = read_header(f, (const char *)f->map + LENGTH_BYTES, length);
    if (status == CFX_OK) status = check_entries(f);
    if (status == CFX_OK) {
        *out = f;
        return CFX_OK;
    }
    cfx_safetensors_close(f);
    cf_fail_in(status, path);
    return cf_fail_in(status, "safetensors_open");
}

CFX_API void cfx_safetensors_close(cfx_safetensors *f) {
    if (!f) return;
    if (f->map) munmap(f->map, f->size);
    if (f->fd >= 0) close(f->fd);
    for (size_t i = 0; i < f->count; i++) free(f->entries[i].name);
    for (size_t i = 0; i < f->n_pairs; i++) {
        free(f->pairs[i].key);
        free(f->pairs[i].value);
    }
    free(f->entries);
    free(f->pairs);
    free(f->path);
    free(f);
}

/* The header's limit keeps the count far below 2^31. */
CFX_API int32_t cfx_safetensors_count(const cfx_safetensors *f) { return f ? (int32_t)f->count : 0; }

CFX_API const char *cfx_safetensors_name(const cfx_safetensors *f, int32_t i) {
    return f && i >= 0 && (size_t)i < f->count ? f->entries[i].name : NULL;
}

CFX_API const char *cfx_safetensors_meta(const cfx_safetensors *f, const char *key) {
    if (!f || !key || !f->n_pairs) return NULL;
    const pair wanted = {.key = (char *)(uintptr_t)key};
    const pair *p = bsearch(&wanted, f->pairs, f->n_pairs, sizeof *f->pairs, by_key);
    return p ? p->value : NULL;
}

CFX_API int32_t cfx_safetensors_meta_count(const cfx_safetensors *f) { return f ? (int32_t)f->n_pairs : 0; }

CFX_API const char *cfx_safetensors_meta_key(const cfx_safetensors *f, int32_t i) {
    return f && i >= 0 && (size_t)i < f->n_pairs ? f->pairs[i].key : NULL;
}

/* A bool of another value than 0 and 1 would break the kernels' arithmetic on it. */
static cfx_status check_bools(const cfx_safetensors *f, const entry *e) {
    const unsigned char *p = f->map + f->data + e->begin, *end = f->map + f->data + e->end;
    while (p < end && *p <= 1) p++;
    if (p == end) return CFX_OK;
    return cf_fail(CFX_EIO, "safetensors_read: %s: BOOL tensor '%s' holds the byte 0x%02x", f->path, e->name, *p);
}

CFX_API cfx_status cfx_safetensors_read(const cfx_safetensors *f, int32_t i, cfx_device *device, cfx_tensor *out) {
    if (!f || !device || !out) return cf_fail(CFX_EARG, "safetensors_read: file, device or out is NULL");
    if (i < 0 || (size_t)i >= f->count)
        return cf_fail(CFX_EARG, "safetensors_read: %s: tensor %" PRId32 " of %zu", f->path, i, f->count);
    const entry *e = &f->entries[i];
    /* Touching mapped pages that a shortened file no longer has would kill the process. */
    struct stat st;
    if (fstat(f->fd, &st) != 0 || (uint64_t)st.st_size < f->size)
        return cf_fail(CFX_EIO, "safetensors_read: %s: the file was cut while it was open", f->path);
    const unsigned char *values = f->map + f->data + e->begin;
    if (e->dtype == CFX_BOOL) CF_TRY(check_bools(f, e));
    if (!e->narrow || e->begin == e->end) return cfx_from_host(device, e->dtype, e->ndim, e->shape, values, out);
    const size_t n = (size_t)(e->end - e->begin) / e->narrow->size;
    void *wide;
    CF_TRY(cf_alloc(n * sizeof(int32_t), &wide));
    e->narrow->widen(n, values, wide);
    const cfx_status status = cfx_from_host(device, e->dtype, e->ndim, e->shape, wide, out);
    free(wide);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------------- */

typedef struct source {
    const char *name;
    int32_t number; /* among the caller's */
    const cfx_tensor *tensor;
    size_t bytes;
} source;

/* Text that grows. */
typedef struct text {
    char *data;
    size_t length, room;
} text;

static cfx_status reserve(text *t, size_t more) {
    if (t->length + more <= t->room) return CFX_OK;
    const size_t room = t->room * 2 + more;
    void *grown = t->data;
    CF_TRY(cf_realloc(&grown, room));
    t->data = grown;
    t->room = room;
    return CFX_OK;
}

static cfx_status put(text *t, const char *s) {
    const size_t n = strlen(s);
    CF_TRY(reserve(t, n));
    memcpy(t->data + t->length, s, n);
    t->length += n;
    return CFX_OK;
}

static cfx_status put_number(text *t, int64_t n, const char *after) {
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRId64 "%s", n, after);
    return put(t, digits);
}

/* The message names `what`[i], and does not repeat text that is not UTF-8. */
static cfx_status put_string(text *t, const char *s, const char *what, int32_t i) {
    CF_TRY(reserve(t, cf_json_quote_room(strlen(s))));
    const size_t n = cf_json_quote(s, t->data + t->length);
    if (!n) return cf_fail(CFX_EARG, "%s[%" PRId32 "] is not UTF-8", what, i);
    t->length += n;
    return CFX_OK;
}

static cfx_status put_metadata(text *t, int32_t n, const char *const *keys, const char *const *values) {
    if (!n) return CFX_OK;
    CF_TRY(put(t, "\"__metadata__\":{"));
    for (int32_t i = 0; i < n; i++) {
        if (i) CF_TRY(put(t, ","));
        CF_TRY(put_string(t, keys[i], "keys", i));
        CF_TRY(put(t, ":"));
        CF_TRY(put_string(t, values[i], "values", i));
    }
    return put(t, "}");
}

static cfx_status put_entry(text *t, const source *s, size_t *at) {
    CF_TRY(put_string(t, s->name, "names", s->number));
    CF_TRY(put(t, ":{\"dtype\":\""));
    CF_TRY(put(t, dtype_names[s->tensor->_dtype]));
    CF_TRY(put(t, "\",\"shape\":["));
    for (int32_t d = 0; d < s->tensor->_ndim; d++)
        CF_TRY(put_number(t, s->tensor->_shape[d], d + 1 < s->tensor->_ndim ? "," : ""));
    CF_TRY(put(t, "],\"data_offsets\":["));
    CF_TRY(put_number(t, (int64_t)*at, ","));
    if (!cf_add_size(*at, s->bytes, at) || *at > INT64_MAX) return cf_fail(CFX_EARG, "too much data for one file");
    CF_TRY(put_number(t, (int64_t)*at, "]}"));
    return CFX_OK;
}

/* Length, JSON and padding, as they go to the file. */
static cfx_status make_header(text *t, int32_t n, const source *sources, int32_t n_meta, const char *const *keys,
                              const char *const *values) {
    size_t at = 0;
    CF_TRY(put(t, "________{")); /* the length comes here */
    CF_TRY(put_metadata(t, n_meta, keys, values));
    for (int32_t i = 0; i < n; i++) {
        if (i || n_meta) CF_TRY(put(t, ","));
        CF_TRY(put_entry(t, &sources[i], &at));
    }
    CF_TRY(put(t, "}"));
    while (t->length % HEADER_ALIGN) CF_TRY(put(t, " "));
    const uint64_t length = t->length - LENGTH_BYTES;
    if (length > HEADER_LIMIT)
        return cf_fail(CFX_EARG, "names and metadata take %" PRIu64 " bytes; the format's limit is %d", length,
                       HEADER_LIMIT);
    for (int i = 0; i < LENGTH_BYTES; i++) t->data[i] = (char)(length >> (8 * i));
    return CFX_OK;
}

/* Wide types first, then by name. */
static int by_width(const void *a, const void *b) {
    const source *x = a, *y = b;
    const int wx = cfx_dtype_size(x->tensor->_dtype), wy = cfx_dtype_size(y->tensor->_dtype);
    return wx != wy ? wy - wx : strcmp(x->name, y->name);
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static cfx_status check_twice(int32_t n, const char *const *names, const char *what) {
    if (n < 2) return CFX_OK;
    const char **sorted;
    CF_TRY(cf_alloc((size_t)n * sizeof *sorted, (void **)&sorted));
    memcpy(sorted, names, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    cfx_status status = CFX_OK;
    for (int32_t i = 1; i < n && status == CFX_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = cf_fail(CFX_EARG, "%s '%s' is given twice", what, sorted[i]);
    free(sorted);
    return status;
}

static cfx_status check_metadata(int32_t n, const char *const *keys, const char *const *values) {
    if (n < 0 || (n && (!keys || !values))) return cf_fail(CFX_EARG, "n_meta is %" PRId32 ", or keys are NULL", n);
    for (int32_t i = 0; i < n; i++)
        if (!keys[i] || !values[i]) return cf_fail(CFX_EARG, "keys[%" PRId32 "] or its value is NULL", i);
    return check_twice(n, keys, "metadata key");
}

/* Fills `sources` and waits for all values, so that a fault is raised before any file is made. */
static cfx_status check_tensors(int32_t n, const cfx_tensor *const *tensors, const char *const *names,
                                source *sources) {
    for (int32_t i = 0; i < n; i++) {
        const cfx_tensor *x = tensors[i];
        if (!names[i]) return cf_fail(CFX_EARG, "names[%" PRId32 "] is NULL", i);
        if (strcmp(names[i], META) == 0) return cf_fail(CFX_EARG, "no tensor can be named '%s'", META);
        if (!x || !x->_buffer) return cf_fail(CFX_EARG, "tensor '%s' is NULL or has no value", names[i]);
        sources[i] = (source){names[i], i, x, (size_t)cf_bytes(x)};
        CF_TRY(cfx_wait(x));
    }
    return check_twice(n, names, "the name");
}

/* The values of one tensor; `room`, which grows, serves those that cannot be written from where they lie. */
static cfx_status write_values(cf_replace *file, const source *s, void **room, size_t *room_bytes) {
    if (!s->bytes) return CFX_OK;
    void *values = NULL;
    if (cfx_is_contiguous(s->tensor)) CF_TRY(cfx_pointer(s->tensor, &values));
    if (!values) {
        if (s->bytes > *room_bytes) {
            free(*room);
            *room = NULL;
            *room_bytes = 0;
            CF_TRY(cf_alloc(s->bytes, room));
            *room_bytes = s->bytes;
        }
        CF_TRY(cfx_read(s->tensor, *room, s->bytes));
        values = *room;
    }
    return cf_replace_write(file, values, s->bytes);
}

static cfx_status write_file(const char *path, const text *header, int32_t n, const source *sources) {
    cf_replace file;
    CF_TRY(cf_replace_open(path, &file));
    void *room = NULL;
    size_t room_bytes = 0;
    cfx_status status = cf_replace_write(&file, header->data, header->length);
    for (int32_t i = 0; i < n && status == CFX_OK; i++) status = write_values(&file, &sources[i], &room, &room_bytes);
    if (status == CFX_OK) status = cf_replace_commit(&file);
    cf_replace_close(&file);
    free(room);
    return status;
}

CFX_API cfx_status cfx_safetensors_write(const char *path, int32_t n, const cfx_tensor *const *tensors,
                                         const char *const *names, int32_t n_meta, const char *const *keys,
                                         const char *const *values) {
    if (!path || n < 0 || (n && (!tensors || !names)))
        return cf_fail(CFX_EARG, "safetensors_write: path, tensors or names is NULL, or n is %" PRId32, n);
    source *sources = NULL;
    text header = {0};
    cfx_status status = check_metadata(n_meta, keys, values);
    if (status == CFX_OK) status = cf_alloc_zero((size_t)n, sizeof *sources, (void **)&sources);
    if (status == CFX_OK) status = check_tensors(n, tensors, names, sources);
    if (status == CFX_OK) {
        if (n) qsort(sources, (size_t)n, sizeof *sources, by_width);
        status = make_header(&header, n, sources, n_meta, keys, values);
    }
    if (status == CFX_OK) status = write_file(path, &header, n, sources);
    free(sources);
    free(header.data);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "safetensors_write");
}
