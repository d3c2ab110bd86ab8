/* The values of the share and of the pod, and holding the process to them.
 *
 * For each name the first source that has it counts: the values file of the share, the
 * environment of PID 1 if it carries a share, and the process's own environment at its start where
 * neither of them is there.
 */
#ifndef AMVGPU_ENVIRONMENT_H
#define AMVGPU_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

#ifndef SHARE_VALUES /* a test has its own */
#define SHARE_VALUES "/usr/local/vgpu/share.conf"
#endif

enum task_priority { TASK_PRIORITY_UNSET, TASK_PRIORITY_HIGH, TASK_PRIORITY_LOW };

/* Reads all sources and corrects `own`, the array that the program will find, in place. False,
 * with a line in the log, when no source carries a share or one cannot be read whole: then
 * nothing is known of what is allowed. */
bool environment_begin(char **own);

/* Trusted value of a name, NULL where no source has it. */
const char *environment_value(const char *name);

bool environment_oversubscribed(void);
enum task_priority environment_task_priority(void);

/* Whether a program may not change this name (`length` characters of `name`). */
bool environment_holds(const char *name, size_t length);

/* "NAME=value" that a held name has, NULL for one that may not be set at all. */
const char *environment_entry(const char *name, size_t length);

/* Whether the value that a program gives a held name may stand: a list of audit libraries that
 * has this one in it. */
bool environment_accepts(const char *name, size_t length, const char *value);

/* All held entries, `*count` of them. */
const char *const *environment_entries(size_t *count);

#endif
