/* Lines on stderr, written with write(2) alone. */
#ifndef AMVGPU_LOG_H
#define AMVGPU_LOG_H

enum log_level { LOG_NONE, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Sets the level from the value of LIBHIP_LOG_LEVEL: one digit, 0 to 4; anything else, and NULL,
 * leaves LOG_WARN. */
void log_choose_level(const char *value);

/* One line. The format knows %s, %d, %u, %lu and %lx. Safe in a signal handler and after fork. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
