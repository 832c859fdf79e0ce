/* outlet.c: see outlet.h. */
#include "launch/outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void cf_outlet_open(cf_outlet *outlet, int fd) {
    char path[64];
    struct stat status;
    *outlet = (cf_outlet){.fd = fd, .most = PIPE_BUF};
    if (fstat(fd, &status) != 0) return;
    if (S_ISREG(status.st_mode)) outlet->most = CF_SCREEN_ROOM;
    if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return; /* writing is an error, and stays one */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own >= 0) *outlet = (cf_outlet){.fd = own, .is_own = true, .most = CF_SCREEN_ROOM};
}

void cf_outlet_close(cf_outlet *outlet) {
    if (outlet->is_own) close(outlet->fd);
    outlet->is_own = false;
}

/* Whether a write of `most` bytes will not wait. */
static bool is_ready(const cf_outlet *outlet) {
    struct pollfd stream = {.fd = outlet->fd, .events = POLLOUT};
    return outlet->most > PIPE_BUF || poll(&stream, 1, 0) != 0;
}

bool cf_outlet_write(cf_outlet *outlet, cf_screen *screen) {
    while (screen->n > 0 && outlet->error == 0 && is_ready(outlet)) {
        const ssize_t n = write(outlet->fd, screen->bytes, screen->n < outlet->most ? screen->n : outlet->most);
        if (n >= 0) {
            cf_screen_take(screen, (size_t)n);
        } else if (errno == EAGAIN || errno == EINTR) {
            return true;
        } else {
            outlet->error = errno;
            return false;
        }
    }
    if (outlet->error) cf_screen_drop(screen);
    return true;
}

bool cf_outlet_is_same(int a, int b) {
    struct stat first, second;
    if (fstat(a, &first) != 0 || fstat(b, &second) != 0) return false;
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}
