/* history.c: the file of what was typed. */
#include "host/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct cf_history {
    char *path;
    char *directory; /* made for the file if it is missing; NULL: the home itself */
};

/* ---- where ----------------------------------------------------------------------------------------- */

static bool is_directory(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The parts in one string, or NULL. */
static char *concat(const char *a, const char *b) {
    char *text = NULL;
    return asprintf(&text, "%s%s", a, b) < 0 ? NULL : text;
}

cf_history *cf_history_open(void) {
    const char *home = getenv("HOME"), *state = getenv("XDG_STATE_HOME");
    if (!home || !*home) return NULL;
    cf_history *history = calloc(1, sizeof *history);
    if (!history) return NULL;

    char *local = concat(home, "/.local/state");
    if (!state || *state != '/') state = local && is_directory(local) ? local : NULL;
    if (state) {
        history->directory = concat(state, "/conflux");
        if (history->directory) history->path = concat(history->directory, "/history");
    } else {
        history->path = concat(home, "/.conflux_history");
    }
    free(local);
    if (history->path) return history;
    cf_history_close(history);
    return NULL;
}

void cf_history_close(cf_history *history) {
    if (!history) return;
    free(history->directory);
    free(history->path);
    free(history);
}

const char *cf_history_path(const cf_history *history) { return history->path; }

/* ---- entries --------------------------------------------------------------------------------------- */

/* The line of an entry, with its newline; NULL when out of memory. */
static char *encode(const char *entry) {
    char *line = malloc(2 * strlen(entry) + 2), *to = line;
    if (!line) return NULL;
    for (; *entry; entry++) {
        if (*entry == '\n' || *entry == '\\') *to++ = '\\';
        *to++ = *entry == '\n' ? 'n' : *entry;
    }
    *to++ = '\n';
    *to = '\0';
    return line;
}

/* In place. */
static void decode(char *line) {
    char *to = line;
    for (; *line; line++) {
        if (*line == '\\' && line[1]) *to++ = *++line == 'n' ? '\n' : *line;
        else *to++ = *line;
    }
    *to = '\0';
}

/* The lines in the file's last CF_HISTORY_BYTES, each with its newline, and a zero.  0, or an errno. */
static int read_file(int fd, char **text, size_t *length) {
    struct stat status;
    *text = NULL;
    *length = 0;
    if (fstat(fd, &status) != 0) return errno;
    if (!S_ISREG(status.st_mode)) return S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    const off_t from = status.st_size > CF_HISTORY_BYTES ? status.st_size - CF_HISTORY_BYTES : 0;
    char *bytes = malloc(CF_HISTORY_BYTES + 2);
    if (!bytes) return ENOMEM;
    size_t n = 0;
    while (n < CF_HISTORY_BYTES) {
        const ssize_t got = pread(fd, bytes + n, CF_HISTORY_BYTES - n, from + (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            const int error = errno;
            free(bytes);
            return error;
        }
        if (got == 0) break;
        n += (size_t)got;
    }
    if (n > 0 && bytes[n - 1] != '\n') bytes[n++] = '\n'; /* another program's, perhaps */
    bytes[n] = '\0';
    if (from > 0) { /* the first line may be the end of one */
        const char *newline = memchr(bytes, '\n', n);
        const size_t cut = newline ? (size_t)(newline - bytes) + 1 : n;
        memmove(bytes, bytes + cut, n - cut + 1);
        n -= cut;
    }
    *text = bytes;
    *length = n;
    return 0;
}

int cf_history_each(cf_history *history, void (*f)(void *data, const char *entry), void *data) {
    const int fd = open(history->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    char *text;
    size_t length;
    const int error = read_file(fd, &text, &length);
    close(fd);
    if (error) return error;
    for (char *line = text, *end = text + length; line < end;) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline) newline = end;
        *newline = '\0';
        decode(line);
        if (*line) f(data, line);
        line = newline + 1;
    }
    free(text);
    return 0;
}

/* ---- adding ---------------------------------------------------------------------------------------- */

/* Makes `path` and what it lies in.  0, or an errno. */
static int make_directory(char *path) {
    if (is_directory(path)) return 0;
    char *slash = strrchr(path, '/');
    if (slash && slash != path) {
        *slash = '\0';
        const int error = make_directory(path);
        *slash = '/';
        if (error) return error;
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

/* The file, locked: the one that bears the name, not one that has been replaced meanwhile.  A file system without
 * locks does without.  The descriptor, or -1 and an errno. */
static int open_locked(const char *path) {
    for (;;) {
        const int fd = open(path, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0) return -1;
        struct stat ours, named;
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR) {}
        const bool are_known = fstat(fd, &ours) == 0 && stat(path, &named) == 0;
        if (are_known && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) return fd;
        close(fd);
    }
}

/* Where the newest entries begin that leave room for `line` within the bounds. */
static const char *newest(const char *text, size_t length, size_t line) {
    const char *from = text + length;
    size_t entries = 1;
    while (from > text && entries < CF_HISTORY_ENTRIES) {
        const char *newline = memrchr(text, '\n', (size_t)(from - text) - 1);
        const char *start = newline ? newline + 1 : text;
        if ((size_t)(text + length - start) + line > CF_HISTORY_BYTES) break;
        from = start;
        entries++;
    }
    return from;
}

/* The new file in the old one's place.  0, or an errno. */
static int replace(const char *path, const char *old, size_t length, const char *line) {
    char *temporary = concat(path, ".XXXXXX");
    if (!temporary) return ENOMEM;
    int error = 0;
    const int fd = mkstemp(temporary); /* for its owner alone */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        error = errno;
        if (fd >= 0) close(fd);
    } else {
        if (fwrite(old, 1, length, file) != length || fputs(line, file) < 0) error = errno;
        if (!error && (fflush(file) != 0 || fsync(fd) != 0)) error = errno;
        if (fclose(file) != 0 && !error) error = errno;
        if (!error && rename(temporary, path) != 0) error = errno;
    }
    if (error && fd >= 0) unlink(temporary);
    free(temporary);
    return error;
}

int cf_history_add(cf_history *history, const char *entry) {
    if (strlen(entry) > CF_HISTORY_ENTRY) return 0;
    if (history->directory) {
        const int error = make_directory(history->directory);
        if (error) return error;
    }
    /* A link's file is replaced, not the link. */
    char *target = realpath(history->path, NULL);
    const char *path = target ? target : history->path;
    char *line = encode(entry), *text = NULL;
    size_t length = 0;
    int error = line ? 0 : ENOMEM;
    const int fd = error ? -1 : open_locked(path);
    if (!error && fd < 0) error = errno;
    if (!error) error = read_file(fd, &text, &length);
    if (!error) {
        const char *from = newest(text, length, strlen(line));
        error = replace(path, from, length - (size_t)(from - text), line);
    }
    if (fd >= 0) close(fd);
    free(text);
    free(line);
    free(target);
    return error;
}
