/* command.h: what the command lines of the programs `conflux` and `conflux-run` have in common.
 *
 * `-n 4` or `-n4`; a long option takes its value as the next word or behind "=".  A word that is no option, or "--",
 * ends the options.
 */
#ifndef CF_BASE_COMMAND_H
#define CF_BASE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

typedef enum cf_value { CF_NO_VALUE, CF_ATTACHED, CF_NEEDED } cf_value; /* CF_ATTACHED: "-O3", never the next word */

typedef struct cf_flag {
    const char *name;
    int id;               /* from 1 */
    const char *variable; /* of the environment, which tells others of it; or NULL */
    cf_value value;
} cf_flag;

enum { CF_NO_OPTION = 0, CF_BAD_OPTION = -1, CF_WHY = 512 };

/* Takes the option at argv[*i] and moves *i past it; returns its id.  CF_NO_OPTION where another word, or nothing,
 * follows; CF_BAD_OPTION with the reason in `why`, of CF_WHY bytes. */
int cf_command_next(const cf_flag *flags, int n, char **argv, int *i, const char **value, char *why);

/* Whether `text` is a whole number in this range, which *out then is; `out` may be NULL. */
bool cf_command_number(const char *text, unsigned long long least, unsigned long long most, unsigned long long *out);

/* Keeps a file that is opened later from becoming a standard stream that was closed before the program began, and so
 * from receiving what is printed.  False where it cannot. */
bool cf_command_keep_streams(void);

#endif
