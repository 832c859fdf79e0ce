/* options.c: takes the command line apart. */
#include "host/options.h"

#include <stdint.h>
#include <stdio.h>
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

static const cf_flag options[] = {
    {"-e", CF_OPTION_EXECUTE, NULL, CF_NEEDED},
    {"-l", CF_OPTION_REQUIRE, NULL, CF_NEEDED},
    {"-j", CF_OPTION_CONTROL, NULL, CF_NEEDED},
    {"-O", CF_OPTION_OPTIMIZE, NULL, CF_ATTACHED},
    {"-b", CF_OPTION_BYTECODE, NULL, CF_ATTACHED},
    {"-i", CF_OPTION_INTERACTIVE, NULL, CF_NO_VALUE},
    {"-E", CF_OPTION_NO_ENVIRONMENT, NULL, CF_NO_VALUE},
    {"-v", CF_OPTION_VERSION, NULL, CF_NO_VALUE},
    {"--version", CF_OPTION_VERSION, NULL, CF_NO_VALUE},
    {"--info", CF_OPTION_INFO, NULL, CF_NO_VALUE},
    {"--help", CF_OPTION_HELP, NULL, CF_NO_VALUE},
    {"--devices", CF_OPTION_DEVICES, "CONFLUX_DEVICES", CF_NEEDED},
    {"--threads", CF_OPTION_THREADS, "CONFLUX_NUM_THREADS", CF_NEEDED},
    {"--seed", CF_OPTION_SEED, "CONFLUX_SEED", CF_NEEDED},
    {"--memory-limit", CF_OPTION_MEMORY_LIMIT, "CONFLUX_MEMORY_LIMIT", CF_NEEDED},
};
enum { OPTIONS = sizeof options / sizeof *options };

static int refuse(const char *format, const char *what) {
    fprintf(stderr, "conflux: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\nTry 'conflux --help'.\n");
    return CF_BAD_OPTION;
}

/* Bytes, perhaps with a unit. */
static bool is_bytes(const char *text) {
    char digits[24];
    const size_t n = strspn(text, "0123456789");
    if (n == 0 || n >= sizeof digits || (text[n] && (!strchr("KMG", text[n]) || text[n + 1]))) return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    const int shift = text[n] == 'K' ? 10 : text[n] == 'M' ? 20 : text[n] == 'G' ? 30 : 0;
    return cf_command_number(digits, 1, (1ULL << 53) >> shift, NULL);
}

/* The option, or CF_BAD_OPTION if its value will not do. */
static int check(int id, const char *value) {
    if (id == CF_OPTION_BYTECODE) {
        return refuse("%s: conflux writes no bytecode; it runs what `luajit -b` has written", "-b");
    }
    if (id == CF_OPTION_THREADS && !cf_command_number(value, 1, CFX_MAX_THREADS, NULL)) {
        return refuse("--threads: expected a number from 1 to 4096, got '%s'", value);
    }
    if (id == CF_OPTION_SEED && !cf_command_number(value, 0, UINT64_MAX, NULL)) {
        return refuse("--seed: expected a number from 0 to 2^64 - 1, got '%s'", value);
    }
    if (id == CF_OPTION_MEMORY_LIMIT && !is_bytes(value)) {
        return refuse("--memory-limit: expected bytes such as 500000000, 512M or 4G, got '%s'", value);
    }
    return id;
}

int cf_option_next(char **argv, int *i, const char **value) {
    char why[CF_WHY];
    const int id = cf_command_next(options, OPTIONS, argv, i, value, why);
    if (id == CF_BAD_OPTION) return refuse("%s", why);
    return id == CF_NO_OPTION ? id : check(id, *value);
}

const char *cf_option_variable(int id) {
    for (int k = 0; k < OPTIONS; k++) {
        if (options[k].id == id) return options[k].variable;
    }
    return NULL;
}
