/* files.c: see files.h. */
#include "launch/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_directory(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) return false;
    if (!S_ISDIR(status.st_mode)) errno = ENOTDIR;
    return S_ISDIR(status.st_mode);
}

bool cf_files_make_directory(const char *path) {
    char part[PATH_MAX];
    const size_t length = strlen(path);
    if (length >= sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (size_t n = 1; n <= length; n++) {
        if (path[n] != '/' && path[n] != '\0') continue;
        memcpy(part, path, n);
        part[n] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
    }
    return is_directory(path);
}

int cf_files_open(const char *directory, int rank, const char *ending) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/rank-%d.%s", directory, rank, ending) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (unlink(path) != 0 && errno != ENOENT) return -1;
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}
