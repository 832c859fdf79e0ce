/* command.c: options and standard streams. */
#include "base/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text behind the flag's name in `arg`: "" if there is none, NULL if it is another word. */
static const char *rest_of(const char *arg, const cf_flag *flag) {
    const size_t length = strlen(flag->name);
    if (strncmp(arg, flag->name, length) != 0) return NULL;
    const bool is_long = length > 2;
    const bool ends = arg[length] == '\0' || (flag->value != CF_NO_VALUE && (!is_long || arg[length] == '='));
    return ends ? arg + length : NULL;
}

int cf_command_next(const cf_flag *flags, int n, char **argv, int *i, const char **value, char *why) {
    const char *arg = argv[*i];
    *value = "";
    if (!arg || arg[0] != '-' || arg[1] == '\0') return CF_NO_OPTION;
    ++*i;
    if (strcmp(arg, "--") == 0) return CF_NO_OPTION;

    for (const cf_flag *flag = flags; flag < flags + n; flag++) {
        const char *rest = rest_of(arg, flag);
        if (!rest) continue;
        *value = rest + (*rest == '=' && arg[1] == '-');
        if (flag->value == CF_NEEDED && *rest == '\0') {
            *value = argv[*i];
            if (!*value) {
                snprintf(why, CF_WHY, "option '%s' needs a value", flag->name);
                return CF_BAD_OPTION;
            }
            ++*i;
        }
        return flag->id;
    }
    snprintf(why, CF_WHY, "unknown option '%s'", arg);
    return CF_BAD_OPTION;
}

bool cf_command_number(const char *text, unsigned long long least, unsigned long long most, unsigned long long *out) {
    if (!*text || text[strspn(text, "0123456789")]) return false;
    errno = 0;
    const unsigned long long n = strtoull(text, NULL, 10);
    if (errno != 0 || n < least || n > most) return false;
    if (out) *out = n;
    return true;
}

bool cf_command_keep_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        /* Reading from it, or writing to it, fails as it should. */
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return false;
    }
    return true;
}
