/* options.h: the command line of the program `conflux-run`. */
#ifndef CF_LAUNCH_OPTIONS_H
#define CF_LAUNCH_OPTIONS_H

#include <stdbool.h>

typedef struct cf_launch_options {
    int ranks;
    double grace;                 /* seconds */
    const char *devices, *output; /* or NULL */
    bool is_script;               /* words[0] is one, and no program */
    char **words;                 /* the script or program with its arguments; NULL behind them */
} cf_launch_options;

/* Reads it.  Returns -1, or the exit code where there is nothing to run: after --help, or after a message. */
int cf_launch_options_read(char **argv, cf_launch_options *out);

#endif
