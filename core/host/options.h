/* options.h: the command line of the `conflux` program.
 *
 * It follows luajit's conventions: `-e chunk` or `-echunk`, `--` and `-`, the script's name ends the options.
 */
#ifndef CF_HOST_OPTIONS_H
#define CF_HOST_OPTIONS_H

#include "base/command.h"

typedef enum cf_option {
    CF_OPTION_EXECUTE = 1,
    CF_OPTION_REQUIRE,
    CF_OPTION_CONTROL,
    CF_OPTION_OPTIMIZE,
    CF_OPTION_BYTECODE,
    CF_OPTION_INTERACTIVE,
    CF_OPTION_NO_ENVIRONMENT,
    CF_OPTION_VERSION,
    CF_OPTION_INFO,
    CF_OPTION_HELP,
    CF_OPTION_DEVICES,
    CF_OPTION_THREADS,
    CF_OPTION_SEED,
    CF_OPTION_MEMORY_LIMIT
} cf_option;

/* The text that --help shows. */
extern const char cf_usage[];

/* Takes the option at argv[*i] and moves *i past it.  CF_NO_OPTION where the script's name, or nothing, follows;
 * CF_BAD_OPTION after a message on stderr. */
int cf_option_next(char **argv, int *i, const char **value);

/* The variable of the environment that hands the option to the Lua library, or NULL. */
const char *cf_option_variable(int id);

#endif
