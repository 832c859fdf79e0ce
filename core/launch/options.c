/* options.c: takes the command line apart. */
#include "launch/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "conflux.h"

static const char usage[] = "usage: conflux-run -n N [options]... script [args]...\n"
                            "       conflux-run -n N [options]... -- program [args]...\n"
                            "  -n, --nproc N    Start N processes, the ranks.\n"
                            "  --devices SPEC   Each rank runs on these devices, such as cpu*2.\n"
                            "  --output DIR     Write each rank's output to DIR/rank-R.out and DIR/rank-R.err,\n"
                            "                   and show that of rank 0 alone.\n"
                            "  --grace SECONDS  So long the others may go on after a rank has failed: 30.\n"
                            "  --version        Show version information.\n"
                            "  --help           Show this text.\n"
                            "  --               A program follows, instead of a script for conflux.\n"
                            "Ranks find their number in CONFLUX_RANK, and how many they are in CONFLUX_WORLD_SIZE.\n";

enum { RANKS = 1, DEVICES, OUTPUT, GRACE, VERSION, HELP };

static const cf_flag flags[] = {
    {"-n", RANKS, NULL, CF_NEEDED},
    {"--nproc", RANKS, "CONFLUX_WORLD_SIZE", CF_NEEDED},
    {"--devices", DEVICES, "CONFLUX_DEVICES", CF_NEEDED},
    {"--output", OUTPUT, NULL, CF_NEEDED},
    {"--grace", GRACE, NULL, CF_NEEDED},
    {"--version", VERSION, NULL, CF_NO_VALUE},
    {"--help", HELP, NULL, CF_NO_VALUE},
};
enum { FLAGS = sizeof flags / sizeof *flags };

enum { MOST_RANKS = 1000000, MOST_SECONDS = 1000000 };

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "conflux-run: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nTry 'conflux-run --help'.\n");
    return EXIT_FAILURE;
}

/* Prints what was asked for; returns the exit code. */
static int print(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vprintf(format, arguments);
    va_end(arguments);
    if (n >= 0 && fflush(stdout) == 0) return EXIT_SUCCESS;
    fprintf(stderr, "conflux-run: cannot write to stdout: %s\n", strerror(errno));
    return EXIT_FAILURE;
}

static bool read_seconds(const char *text, double *out) {
    char *end;
    const double seconds = strtod(text, &end);
    if (end == text || *end || !isfinite(seconds) || seconds < 0 || seconds > MOST_SECONDS) return false;
    *out = seconds;
    return true;
}

/* Takes one option; returns -1, or the exit code. */
static int take(int id, const char *value, cf_launch_options *out) {
    unsigned long long n;
    switch (id) {
    case RANKS:
        if (!cf_command_number(value, 1, MOST_RANKS, &n)) {
            return refuse("-n: expected a number of ranks from 1 to %d, got '%s'", MOST_RANKS, value);
        }
        out->ranks = (int)n;
        return -1;
    case GRACE:
        if (!read_seconds(value, &out->grace)) {
            return refuse("--grace: expected seconds from 0 to %d, got '%s'", MOST_SECONDS, value);
        }
        return -1;
    case DEVICES: out->devices = value; return -1;
    case OUTPUT: out->output = value; return -1;
    case VERSION: return print("conflux-run %s (%s)\n", cfx_version(), CF_BUILD);
    default: return print("%s", usage);
    }
}

int cf_launch_options_read(char **argv, cf_launch_options *out) {
    char why[CF_WHY];
    int i = argv[0] != NULL;
    *out = (cf_launch_options){.grace = 30, .is_script = true};
    for (;;) {
        const char *word = argv[i], *value;
        const int id = cf_command_next(flags, FLAGS, argv, &i, &value, why);
        if (id == CF_BAD_OPTION) return refuse("%s", why);
        if (id == CF_NO_OPTION) {
            out->is_script = !word || strcmp(word, "--") != 0;
            break;
        }
        const int code = take(id, value, out);
        if (code >= 0) return code;
    }
    out->words = argv + i;
    if (out->ranks == 0) return refuse("option '-n' is missing: how many ranks are to be started");
    if (!argv[i]) return refuse(out->is_script ? "there is no script to run" : "there is no program to run");
    if (out->is_script && strcmp(argv[i], "-") == 0) {
        return refuse("a script is a file here: stdin is rank 0's alone, and others could not read it");
    }
    return -1;
}
