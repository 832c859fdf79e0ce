/* main.c: the `conflux` program.
 *
 * It follows luajit's conventions: the order of options, the `arg` table, messages, exit codes.  Its own
 * options reach the Lua library through the environment, set before Lua starts, so that a script run by
 * plain luajit can be given the same settings.
 */
#include <errno.h>
#include <lauxlib.h>
#include <luajit.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conflux.h"
#include "host/host.h"

static const char usage[] = "usage: conflux [options]... [script [args]...]\n"
                            "  -e chunk         Execute string 'chunk'.\n"
                            "  -l name          Require library 'name'.\n"
                            "  -v, --version    Show version information.\n"
                            "  --info           Show versions, devices and memory, and why something is missing.\n"
                            "  --help           Show this text.\n"
                            "  --devices SPEC   Run on these devices: names separated by commas, such as cpu*2.\n"
                            "                   Without it: on every visible GPU, or if there is none on the CPU.\n"
                            "  --threads N      Share N threads among the CPU devices.\n"
                            "  --seed N         Seed the random numbers.\n"
                            "  --memory-limit N A device's tensors may take N bytes: a number, or such as 512M, 4G.\n"
                            "  --               Stop handling options.\n"
                            "  -                Execute stdin and stop handling options.\n";

/* ---- options --------------------------------------------------------------------------------------- */

typedef enum {
    NO_OPTION,
    BAD_OPTION,
    EXECUTE,
    REQUIRE,
    VERSION,
    INFO,
    HELP,
    DEVICES,
    THREADS,
    SEED,
    MEMORY_LIMIT
} option;

static const struct {
    const char *name;
    option id;
    const char *variable; /* of the environment */
    bool has_value;
} options[] = {
    {"-e", EXECUTE, NULL, true},
    {"-l", REQUIRE, NULL, true},
    {"-v", VERSION, NULL, false},
    {"--version", VERSION, NULL, false},
    {"--info", INFO, NULL, false},
    {"--help", HELP, NULL, false},
    {"--devices", DEVICES, "CONFLUX_DEVICES", true},
    {"--threads", THREADS, "CONFLUX_NUM_THREADS", true},
    {"--seed", SEED, "CONFLUX_SEED", true},
    {"--memory-limit", MEMORY_LIMIT, "CONFLUX_MEMORY_LIMIT", true},
};
enum { OPTIONS = sizeof options / sizeof *options };

static option refuse(const char *format, const char *what) {
    fprintf(stderr, "conflux: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\nTry 'conflux --help'.\n");
    return BAD_OPTION;
}

/* What stands behind the name of option k in `arg`: "" if it is the name alone, NULL if it is another word.
 * "-e" may be followed by its value at once, "--seed" by "=" and its value. */
static const char *rest_of(const char *arg, int k) {
    const size_t length = strlen(options[k].name);
    if (strncmp(arg, options[k].name, length) != 0) return NULL;
    const bool is_long = length > 2;
    const bool ends = arg[length] == '\0' || (options[k].has_value && (!is_long || arg[length] == '='));
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

/* Takes the option at argv[*i] and moves *i past it; NO_OPTION where the script's name, or nothing, follows. */
static option next_option(char **argv, int *i, const char **value) {
    const char *arg = argv[*i];
    *value = "";
    if (!arg || arg[0] != '-' || arg[1] == '\0') return NO_OPTION;
    ++*i;
    if (strcmp(arg, "--") == 0) return NO_OPTION;

    for (int k = 0; k < OPTIONS; k++) {
        const char *rest = rest_of(arg, k);
        if (!rest) continue;
        if (!options[k].has_value) return options[k].id;
        *value = *rest == '\0' ? argv[(*i)++] : rest + (*rest == '=' && arg[1] == '-');
        if (!*value) return refuse("option '%s' needs a value", options[k].name);
        if (options[k].id == THREADS && !is_number(*value, 1, 4096)) {
            return refuse("--threads: expected a number from 1 to 4096, got '%s'", *value);
        }
        if (options[k].id == SEED && !is_number(*value, 0, UINT64_MAX)) {
            return refuse("--seed: expected a number from 0 to 2^64 - 1, got '%s'", *value);
        }
        if (options[k].id == MEMORY_LIMIT && !is_bytes(*value)) {
            return refuse("--memory-limit: expected bytes such as 500000000, 512M or 4G, got '%s'", *value);
        }
        return options[k].id;
    }
    return refuse("unknown option '%s'", arg);
}

/* ---- messages -------------------------------------------------------------------------------------- */

static void print_error(const char *message) {
    const char *no_color = getenv("NO_COLOR");
    const bool color = isatty(STDERR_FILENO) && !(no_color && *no_color);
    fflush(stdout);
    fprintf(stderr, color ? "\033[1;31mconflux:\033[0m %s\n" : "conflux: %s\n", message);
    fflush(stderr);
}

static void print_log(void *data, int level, const char *message) {
    static const char *const names[] = {"error: ", "warning: ", ""};
    (void)data;
    fprintf(stderr, "conflux: %s%s\n", names[level < 0 ? 0 : level > 2 ? 2 : level], message);
}

/* ---- running --------------------------------------------------------------------------------------- */

static void on_interrupt(int signal) {
    (void)signal;
    cf_host_interrupt();
}

/* Calls what was loaded with `status`, and prints the error of either. */
static bool run(lua_State *L, int status, int nargs) {
    if (status == 0) {
        /* No SA_RESTART: a wait must return to see the interrupt.  SA_RESETHAND: the next one ends us. */
        struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = cf_host_call(L, nargs);
        signal(SIGINT, SIG_DFL);
    }
    if (status == 0) return true;
    if (!lua_isnil(L, -1)) {
        const char *message = lua_tostring(L, -1);
        print_error(message ? message : "(error object is not a string)");
    }
    lua_pop(L, 1);
    return false;
}

static bool run_script(lua_State *L, const char *path, char **args) {
    int nargs = 0;
    const int status = luaL_loadfile(L, path);
    if (status == 0) {
        for (; args[nargs]; nargs++) {
            luaL_checkstack(L, 2, "too many arguments to script");
            lua_pushstring(L, args[nargs]);
        }
    }
    return run(L, status, nargs);
}

static void set_arg(lua_State *L, char **argv, int argc, int script) {
    lua_createtable(L, argc - script, script);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");
}

/* Runs -e, -l and --info in their order, then the script or stdin. */
static bool run_all(lua_State *L, char **argv, int script, bool wants_stdin) {
    const char *value;
    option id;
    for (int i = 1; (id = next_option(argv, &i, &value)) != NO_OPTION;) {
        if (id == INFO) value = "print(require('conflux').info())";
        if (id == EXECUTE || id == INFO) {
            if (!run(L, luaL_loadbuffer(L, value, strlen(value), "=(command line)"), 0)) return false;
        } else if (id == REQUIRE) {
            lua_getglobal(L, "require");
            lua_pushstring(L, value);
            if (!run(L, 0, 1)) return false;
        }
    }
    const char *name = argv[script];
    if (name) {
        const bool is_stdin = strcmp(name, "-") == 0 && strcmp(argv[script - 1], "--") != 0;
        return run_script(L, is_stdin ? NULL : name, argv + script + 1);
    }
    return !wants_stdin || run_script(L, NULL, argv + script);
}

int main(int argc, char **argv) {
    const char *value;
    bool executes = false, shows_version = false;
    int script = 1;
    option id;
    while ((id = next_option(argv, &script, &value)) != NO_OPTION) {
        if (id == BAD_OPTION) return EXIT_FAILURE;
        if (id == HELP) return fputs(usage, stdout) < 0;
        executes |= id == EXECUTE || id == INFO;
        shows_version |= id == VERSION;
        for (int k = 0; k < OPTIONS; k++) {
            if (options[k].id == id && options[k].variable) setenv(options[k].variable, value, 1);
        }
    }
    if (shows_version) printf("Conflux %s (%s) -- %s\n", cfx_version(), CF_BUILD, LUAJIT_VERSION);

    const bool wants_stdin = !argv[script] && !executes && !shows_version;
    if (wants_stdin && isatty(STDIN_FILENO)) return fputs(usage, stdout) < 0;

    cfx_log_to(print_log, NULL);
    lua_State *L = cf_host_open();
    if (!L) {
        print_error("cannot create a Lua state: not enough memory");
        return EXIT_FAILURE;
    }
    set_arg(L, argv, argc, script);
    const bool ok = run_all(L, argv, script, wants_stdin);
    cf_host_close(L);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
