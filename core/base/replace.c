/* replace.c: atomic replacement of files. */
#include "base/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/locale.h"

enum {
    TRIES = 100,    /* names that a killed process, or one of another machine, may have left */
    LINKS = 40,     /* followed in a row, as Linux does */
    PIECE = 1 << 30 /* Linux writes a little less than 2 GiB at once */
};

static cfx_status failed(const cf_replace *file, const char *what) {
    return cf_fail(CFX_EIO, "%s: %s: %s", file->path, what, cf_strerror(errno));
}

/* Length of the directory part, with its slash; 0: the working directory. */
static size_t directory_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Puts the file that the link at out->path names in its place; *is_link is 0 where that is no link. */
static cfx_status follow_link(cf_replace *out, int *is_link) {
    char target[PATH_MAX];
    const ssize_t n = readlink(out->path, target, sizeof target);
    *is_link = n >= 0;
    if (n < 0) return CFX_OK;
    if (n == sizeof target) return cf_fail(CFX_EIO, "%s: a link to a path of more than %d bytes", out->path, PATH_MAX);
    const size_t directory = n && target[0] == '/' ? 0 : directory_length(out->path);
    char *whole;
    CF_TRY(cf_alloc(directory + (size_t)n + 1, (void **)&whole));
    memcpy(whole, out->path, directory);
    memcpy(whole + directory, target, (size_t)n);
    whole[directory + (size_t)n] = '\0';
    free(out->path);
    out->path = whole;
    return CFX_OK;
}

/* Where the bytes are to go: `path`, or what it links to, be there a file yet or not. */
static cfx_status resolve(const char *path, cf_replace *out, mode_t *mode) {
    struct stat st;
    const int exists = stat(path, &st) == 0;
    /* realpath names a file that is there; for one that is not, the links are followed here. */
    if (!exists && errno != ENOENT) return cf_fail(CFX_EIO, "%s: %s", path, cf_strerror(errno));
    if (!exists) {
        CF_TRY(cf_copy_string(path, &out->path));
        for (int links = 0, is_link = 1; is_link; links++) {
            if (links > LINKS) return cf_fail(CFX_EIO, "%s: %s", path, cf_strerror(ELOOP));
            CF_TRY(follow_link(out, &is_link));
        }
        return CFX_OK;
    }
    if (!S_ISREG(st.st_mode)) return cf_fail(CFX_EIO, "%s: not a regular file", path);
    out->path = realpath(path, NULL);
    if (!out->path) return cf_fail(CFX_EIO, "%s: %s", path, cf_strerror(errno));
    *mode = st.st_mode & 07777;
    return CFX_OK;
}

/* Not mkstemp: open applies the umask itself, which no thread can read without changing it for the others. */
static cfx_status open_temporary(cf_replace *out) {
    static atomic_uint next;
    const size_t directory = directory_length(out->path), room = directory + 64;
    CF_TRY(cf_alloc(room, (void **)&out->temporary));
    memcpy(out->temporary, out->path, directory);
    for (int i = 0; i < TRIES; i++) {
        snprintf(out->temporary + directory, room - directory, ".conflux-%ld-%u.tmp", (long)getpid(),
                 atomic_fetch_add(&next, 1));
        out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->fd >= 0) return CFX_OK;
        if (errno != EEXIST) break;
    }
    const cfx_status status = failed(out, "cannot write there");
    free(out->temporary);
    out->temporary = NULL;
    return status;
}

cfx_status cf_replace_open(const char *path, cf_replace *out) {
    *out = (cf_replace){.fd = -1};
    mode_t mode = 0;
    cfx_status status = resolve(path, out, &mode);
    if (status == CFX_OK) status = open_temporary(out);
    /* Where the file system has no modes, the default stays. */
    if (status == CFX_OK && mode && fchmod(out->fd, mode) != 0 && errno != EPERM && errno != ENOTSUP)
        status = failed(out, "cannot set its mode");
    if (status != CFX_OK) cf_replace_close(out);
    return status;
}

cfx_status cf_replace_write(cf_replace *file, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes) {
        const ssize_t n = write(file->fd, p, bytes < PIECE ? bytes : PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(file, "cannot write");
        p += n;
        bytes -= (size_t)n;
    }
    return CFX_OK;
}

/* Some file systems know no fsync of directories; there is nothing better to do there. */
static cfx_status sync_directory(const cf_replace *file) {
    const size_t length = directory_length(file->path);
    char *directory;
    CF_TRY(cf_alloc(length + 2, (void **)&directory));
    memcpy(directory, file->path, length);
    strcpy(directory + length, length ? "" : ".");
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    const int synced = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP);
    const int unreadable = fd < 0 && errno == EACCES; /* writable, so the rename worked, but not to be opened */
    const cfx_status status = synced || unreadable ? CFX_OK : failed(file, "cannot sync its directory");
    if (fd >= 0) close(fd);
    return status;
}

cfx_status cf_replace_commit(cf_replace *file) {
    if (fsync(file->fd) != 0) return failed(file, "cannot sync");
    const int fd = file->fd;
    file->fd = -1;
    if (close(fd) != 0) return failed(file, "cannot close"); /* network file systems report a full disk here */
    if (rename(file->temporary, file->path) != 0) return failed(file, "cannot rename into place");
    free(file->temporary);
    file->temporary = NULL;
    return sync_directory(file);
}

void cf_replace_close(cf_replace *file) {
    if (file->fd >= 0) close(file->fd);
    if (file->temporary) unlink(file->temporary);
    free(file->temporary);
    free(file->path);
    *file = (cf_replace){.fd = -1};
}
