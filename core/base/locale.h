/* locale.h: text that does not depend on the host's locale.
 *
 * A program in Germany may have set one in which 23.5 is written "23,5" and errors of the system are German.
 * Conflux writes and reads the same text everywhere: a thread takes the C locale for as long as it formats.
 * A header alone, since plugins format, too.  C's locale is one object, which costs nothing to ask for.
 */
#ifndef CF_BASE_LOCALE_H
#define CF_BASE_LOCALE_H

#include <dlfcn.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static inline locale_t cf_locale_c(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* vsnprintf and snprintf. */
static inline void cf_vformat(char *text, size_t bytes, const char *format, va_list args) {
    const locale_t hosts = uselocale(cf_locale_c());
    vsnprintf(text, bytes, format, args);
    uselocale(hosts);
}
__attribute__((format(printf, 3, 4))) static inline void cf_format(char *text, size_t bytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    cf_vformat(text, bytes, format, args);
    va_end(args);
}

/* strerror, which is not for several threads either. */
static inline const char *cf_strerror(int error) { return strerror_l(error, cf_locale_c()); }

/* dlerror's text, or a general one where dlerror has none. */
static inline void cf_format_dlerror(char *text, size_t bytes) {
    const locale_t hosts = uselocale(cf_locale_c());
    const char *said = dlerror();
    snprintf(text, bytes, "%s", said ? said : "unknown error");
    uselocale(hosts);
}

#endif
