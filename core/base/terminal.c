/* terminal.c: see terminal.h. */
#include "base/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conflux.h"

enum { STREAMS = 3, ENTRY = 64 };

/* The entry of a standard stream that is a pipe; false if it is none. */
static bool entry_of(int fd, char *text) {
    static const char *const names[STREAMS] = {"stdin", "stdout", "stderr"};
    struct stat status;
    if (fd < 0 || fd >= STREAMS || fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return false;
    snprintf(text, ENTRY, "%s=%llu", names[fd], (unsigned long long)status.st_ino);
    return true;
}

CFX_API int32_t cfx_is_terminal(int32_t fd) {
    char entry[ENTRY];
    if (isatty(fd)) return 1;
    const char *list = getenv(CF_TERMINAL);
    if (!list || !entry_of(fd, entry)) return 0;
    const size_t length = strlen(entry);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, entry, length) == 0 && (at[length] == ',' || at[length] == '\0')) return 1;
    }
    return 0;
}

bool cf_terminal_set(const bool behind[STREAMS], int columns) {
    char text[(STREAMS + 1) * ENTRY] = "", entry[ENTRY];
    size_t n = 0;
    for (int fd = 0; fd < STREAMS; fd++) {
        if (behind[fd] && entry_of(fd, entry)) n += (size_t)snprintf(text + n, sizeof text - n, "%s,", entry);
    }
    if (n == 0) return unsetenv(CF_TERMINAL) == 0;
    if (columns > 0) snprintf(text + n, sizeof text - n, "columns=%d", columns);
    else text[n - 1] = '\0';
    return setenv(CF_TERMINAL, text, 1) == 0;
}

int cf_terminal_columns(void) {
    struct winsize size;
    for (int fd = 0; fd < STREAMS; fd++) {
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    }
    return 0;
}
