/* options.c: takes the command line apart. */
#include "host/options.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conflux.h"

const char cf_usage[] = "usage: conflux [options]... [script [args]...]\n"
                        "  -e chunk         Execute string 'chunk'.\n"
                        "  -l name          Require library 'name'.\n"
                        "  -i               Enter interactive mode after executing 'script'.\n"
                        "  -E               Ignore LUA_INIT, LUA_PATH and LUA_CPATH.\n"
                        "  -j cmd           Perform LuaJIT control command.\n"
                        "  -O[opt]          Control LuaJIT optimizations.\n"
                        "  -v, --version    Show version information.\n"
                        "  --info           Show versions, devices and memory, and why something is missing.\n"
                        "  --help           Show this text.\n"
                        "  --devices SPEC   Run on these devices: names separated by commas, such as cpu*2.\n"
                        "                   Without it: on every visible GPU, or if there is none on the CPU.\n"
                        "  --threads N      Share N threads among the CPU devices.\n"
                        "  --seed N         Seed the random numbers.\n"
                        "  --memory-limit N A device's tensors may take N bytes: a number, or such as 512M, 4G.\n"
                        "  --               Stop handling options.\n"
                        "  -                Execute stdin and stop handling options.\n"
                        "Without a script: interactive mode on a terminal, else stdin is executed.\n";

typedef enum value { NO_VALUE, ATTACHED, NEEDED } value; /* ATTACHED: "-O3", never the next word */

static const struct {
    const char *name;
    cf_option id;
    const char *variable; /* of the environment */
    value value;
} options[] = {
    {"-e", CF_OPTION_EXECUTE, NULL, NEEDED},
    {"-l", CF_OPTION_REQUIRE, NULL, NEEDED},
    {"-j", CF_OPTION_CONTROL, NULL, NEEDED},
    {"-O", CF_OPTION_OPTIMIZE, NULL, ATTACHED},
    {"-b", CF_OPTION_BYTECODE, NULL, ATTACHED},
    {"-i", CF_OPTION_INTERACTIVE, NULL, NO_VALUE},
    {"-E", CF_OPTION_NO_ENVIRONMENT, NULL, NO_VALUE},
    {"-v", CF_OPTION_VERSION, NULL, NO_VALUE},
    {"--version", CF_OPTION_VERSION, NULL, NO_VALUE},
    {"--info", CF_OPTION_INFO, NULL, NO_VALUE},
    {"--help", CF_OPTION_HELP, NULL, NO_VALUE},
    {"--devices", CF_OPTION_DEVICES, "CONFLUX_DEVICES", NEEDED},
    {"--threads", CF_OPTION_THREADS, "CONFLUX_NUM_THREADS", NEEDED},
    {"--seed", CF_OPTION_SEED, "CONFLUX_SEED", NEEDED},
    {"--memory-limit", CF_OPTION_MEMORY_LIMIT, "CONFLUX_MEMORY_LIMIT", NEEDED},
};
enum { OPTIONS = sizeof options / sizeof *options };

static cf_option refuse(const char *format, const char *what) {
    fprintf(stderr, "conflux: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\nTry 'conflux --help'.\n");
    return CF_BAD_OPTION;
}

/* The text behind the name of option k in `arg`: "" if there is none, NULL if it is another word. "-e" may be followed
 * by its value at once, "--seed" by "=" and its value. */
static const char *rest_of(const char *arg, int k) {
    const size_t length = strlen(options[k].name);
    if (strncmp(arg, options[k].name, length) != 0) return NULL;
    const bool is_long = length > 2;
    const bool ends = arg[length] == '\0' || (options[k].value != NO_VALUE && (!is_long || arg[length] == '='));
    return ends ? arg + length : NULL;
}

static bool is_number(const char *text, unsigned long long least, unsigned long long most) {
    if (!*text || text[strspn(text, "0123456789")]) return false;
    errno = 0;
    const unsigned long long n = strtoull(text, NULL, 10);
    return errno == 0 && n >= least && n <= most;
}

/* Bytes, perhaps with a unit. */
static bool is_bytes(const char *text) {
    char digits[24];
    const size_t n = strspn(text, "0123456789");
    if (n == 0 || n >= sizeof digits || (text[n] && (!strchr("KMG", text[n]) || text[n + 1]))) return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    return is_number(digits, 1, (1ULL << 53) >> (text[n] == 'K' ? 10 : text[n] == 'M' ? 20 : text[n] == 'G' ? 30 : 0));
}

/* The option, or CF_BAD_OPTION if its value will not do. */
static cf_option check(cf_option id, const char *value) {
    if (id == CF_OPTION_BYTECODE) {
        return refuse("%s: conflux writes no bytecode; it runs what `luajit -b` has written", "-b");
    }
    if (id == CF_OPTION_THREADS && !is_number(value, 1, CFX_MAX_THREADS)) {
        return refuse("--threads: expected a number from 1 to 4096, got '%s'", value);
    }
    if (id == CF_OPTION_SEED && !is_number(value, 0, UINT64_MAX)) {
        return refuse("--seed: expected a number from 0 to 2^64 - 1, got '%s'", value);
    }
    if (id == CF_OPTION_MEMORY_LIMIT && !is_bytes(value)) {
        return refuse("--memory-limit: expected bytes such as 500000000, 512M or 4G, got '%s'", value);
    }
    return id;
}

cf_option cf_option_next(char **argv, int *i, const char **value) {
    const char *arg = argv[*i];
    *value = "";
    if (!arg || arg[0] != '-' || arg[1] == '\0') return CF_NO_OPTION;
    ++*i;
    if (strcmp(arg, "--") == 0) return CF_NO_OPTION;

    for (int k = 0; k < OPTIONS; k++) {
        const char *rest = rest_of(arg, k);
        if (!rest) continue;
        *value = rest + (*rest == '=' && arg[1] == '-');
        if (options[k].value == NEEDED && *rest == '\0') {
            *value = argv[*i];
            if (!*value) return refuse("option '%s' needs a value", options[k].name);
            ++*i;
        }
        return check(options[k].id, *value);
    }
    return refuse("unknown option '%s'", arg);
}

const char *cf_option_variable(cf_option id) {
    for (int k = 0; k < OPTIONS; k++) {
        if (options[k].id == id) return options[k].variable;
    }
    return NULL;
}
