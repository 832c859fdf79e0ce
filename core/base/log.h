/* log.h: what the process keeps of messages: the last failure's, one for each thread, and where lines go that belong
 * to no failure.  The library alone has this file; plugins reach the message by cfx_error and cfx_error_set.
 */
#ifndef CF_BASE_LOG_H
#define CF_BASE_LOG_H

#include "conflux.h"

/* Bytes of a message, with its end; a longer one is cut. */
enum { CF_MESSAGE_BYTES = 1024 };

/* Sends a line to the log hook; level 0 error, 1 warning, 2 info. */
void cf_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The log that cfx_log_here gave this thread. */
cfx_log cf_log_of_thread(void);

#endif
