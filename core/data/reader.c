/* reader.c: plain and gzip files through zlib. */
#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/locale.h"

enum {
    GZIP_BUFFER = 128 * 1024,
    CHUNK = 4 * 1024 * 1024 /* between two looks at the interrupt flag: some milliseconds */
};

cfx_status cf_reader_open(cfx_context *context, const char *path, cf_reader *out) {
    *out = (cf_reader){.context = context, .path = path, .plain = -1};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would not return */
    if (fd < 0) return cf_fail(CFX_EIO, "%s: %s", path, cf_strerror(errno));
    struct stat st;
    const int error = fstat(fd, &st) != 0 ? errno : 0;
    if (error || !S_ISREG(st.st_mode)) {
        close(fd);
        return cf_fail(CFX_EIO, "%s: %s", path, error ? cf_strerror(error) : "not a regular file");
    }
    out->file = gzdopen(fd, "rb");
    if (!out->file) {
        close(fd);
        return cf_fail(CFX_EMEMORY, "%s: out of host memory", path);
    }
    gzbuffer(out->file, GZIP_BUFFER);
    if (gzdirect(out->file)) out->plain = (int64_t)st.st_size;
    return CFX_OK;
}

/* zlib says "<fd:3>: incorrect data check"; the path is better than the number. */
static cfx_status read_failed(cf_reader *reader) {
    const int system = errno;
    int code = Z_OK;
    const char *text = gzerror(reader->file, &code);
    if (code == Z_ERRNO) return cf_fail(CFX_EIO, "%s: %s", reader->path, cf_strerror(system));
    if (code == Z_BUF_ERROR) {
        reader->cut = 1;
        return cf_fail(CFX_EIO, "%s: truncated gzip data: it ends after %zu bytes", reader->path, reader->given);
    }
    const char *colon = strstr(text, ": ");
    return cf_fail(CFX_EIO, "%s: corrupt gzip data after %zu bytes (%s)", reader->path, reader->given,
                   colon ? colon + 2 : text);
}

cfx_status cf_reader_read(cf_reader *reader, void *dst, size_t bytes, size_t *got) {
    *got = 0;
    while (*got < bytes) {
        CF_TRY(cfx_check(reader->context));
        const size_t left = bytes - *got;
        const unsigned want = (unsigned)(left < CHUNK ? left : CHUNK);
        const int n = gzread(reader->file, (char *)dst + *got, want);
        if (n > 0) {
            *got += (size_t)n;
            reader->given += (size_t)n;
        }
        if (n == (int)want) continue;
        /* Fewer than asked for: the end, unless zlib knows better. */
        int code = Z_OK;
        gzerror(reader->file, &code);
        if (n < 0 || code < 0) return read_failed(reader);
        break;
    }
    return CFX_OK;
}

void cf_reader_close(cf_reader *reader) {
    if (reader->file) gzclose(reader->file);
    reader->file = NULL;
}
