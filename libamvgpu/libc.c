/* Wrappers of libc: the environment that a program reads, changes and hands to what it starts.
 *
 * Run in the child of vfork too, so nothing here allocates.
 */
#include <alloca.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

#include "copies.h"
#include "environment.h"
#include "program.h"

ENTRY(char *, getenv, const char *);
ENTRY(char *, secure_getenv, const char *);
ENTRY(int, setenv, const char *, const char *, int);
ENTRY(int, putenv, char *);
ENTRY(int, unsetenv, const char *);
ENTRY(int, clearenv, void);
ENTRY(int, execve, const char *, char *const *, char *const *);
ENTRY(int, execvpe, const char *, char *const *, char *const *);
ENTRY(int, execv, const char *, char *const *);
ENTRY(int, execvp, const char *, char *const *);
ENTRY(int, execl, const char *, const char *, ...);
ENTRY(int, execlp, const char *, const char *, ...);
ENTRY(int, execle, const char *, const char *, ...);
ENTRY(int, fexecve, int, char *const *, char *const *);
ENTRY(int, execveat, int, const char *, char *const *, char *const *, int);
ENTRY(int, posix_spawn, pid_t *, const char *, const posix_spawn_file_actions_t *,
      const posix_spawnattr_t *, char *const *, char *const *);
ENTRY(int, posix_spawnp, pid_t *, const char *, const posix_spawn_file_actions_t *,
      const posix_spawnattr_t *, char *const *, char *const *);

static function *real_environ; /* an object, but found in the same way */

/* ---- reading and changing ---- */

static char *held_value(const char *name, size_t length)
{
    const char *entry = environment_entry(name, length);
    return entry ? (char *)(uintptr_t)(entry + length + 1) : NULL;
}

static char *wrap_getenv(const char *name)
{
    size_t length = strlen(name);
    if (!environment_holds(name, length))
        return REAL(getenv)(name);
    char *value = REAL(getenv)(name);
    return environment_accepts(name, length, value) ? value : held_value(name, length);
}

static char *wrap_secure_getenv(const char *name)
{
    size_t length = strlen(name);
    return environment_holds(name, length) ? held_value(name, length) : REAL(secure_getenv)(name);
}

static int wrap_setenv(const char *name, const char *value, int overwrite)
{
    size_t length = name ? strlen(name) : 0;
    if (!name || !environment_holds(name, length) || environment_accepts(name, length, value))
        return REAL(setenv)(name, value, overwrite);
    const char *held = held_value(name, length);
    return held ? REAL(setenv)(name, held, 1) : 0;
}

static int wrap_putenv(char *entry)
{
    size_t length = strcspn(entry, "=");
    if (!environment_holds(entry, length) ||
        (entry[length] && environment_accepts(entry, length, entry + length + 1)))
        return REAL(putenv)(entry);
    const char *held = environment_entry(entry, length);
    return held ? REAL(putenv)((char *)(uintptr_t)held) : 0;
}

static int wrap_unsetenv(const char *name)
{
    return name && environment_holds(name, strlen(name)) ? 0 : REAL(unsetenv)(name);
}

static int wrap_clearenv(void)
{
    size_t count;
    const char *const *entries = environment_entries(&count);
    int result = REAL(clearenv)();
    for (size_t i = 0; i < count && result == 0; i++)
        result = REAL(putenv)((char *)(uintptr_t)entries[i]);
    return result;
}

/* ---- handing on ---- */

static size_t length_of(char *const *list)
{
    size_t length = 0;
    while (list && list[length])
        length++;
    return length;
}

/* Room that `held_environment` needs for a list. */
static size_t room_for(char *const *list)
{
    size_t held;
    environment_entries(&held);
    return (length_of(list) + held + 1) * sizeof(char *);
}

/* The list as a program gave it, with all held values instead of its own. LD_AUDIT is among
 * them: a cleaned environment must not start a process that nobody holds to its share. */
static char *const *held_environment(char *const *list, char **corrected)
{
    size_t held, count = 0;
    const char *const *entries = environment_entries(&held);
    bool audit_accepted = false;
    for (char *const *entry = list; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        bool accepted = (*entry)[length] && environment_accepts(*entry, length, *entry + length + 1);
        audit_accepted = audit_accepted || accepted;
        if (accepted || !environment_holds(*entry, length))
            corrected[count++] = *entry;
    }
    for (size_t i = 0; i < held; i++)
        if (!audit_accepted || strncmp(entries[i], "LD_AUDIT=", 9) != 0)
            corrected[count++] = (char *)(uintptr_t)entries[i];
    corrected[count] = NULL;
    return corrected;
}

#define HELD(list) held_environment(list, alloca(room_for(list)))

/* The environment of the program itself: an executable may have the variable moved into it. */
static char *const *own_environment(void)
{
    char ***variable = program_environment();
    if (!variable)
        variable = (char ***)(uintptr_t)real_environ;
    return variable ? *variable : NULL;
}

static int wrap_execve(const char *path, char *const *arguments, char *const *environment)
{
    return REAL(execve)(path, arguments, HELD(environment));
}

static int wrap_execvpe(const char *path, char *const *arguments, char *const *environment)
{
    return REAL(execvpe)(path, arguments, HELD(environment));
}

static int wrap_execv(const char *path, char *const *arguments)
{
    return REAL(execve)(path, arguments, HELD(own_environment()));
}

static int wrap_execvp(const char *path, char *const *arguments)
{
    return REAL(execvpe)(path, arguments, HELD(own_environment()));
}

/* The arguments of the variadic forms, up to and with the NULL that ends them. */
#define COLLECT(first, arguments, values)                              \
    do {                                                               \
        size_t count = 1;                                              \
        va_list counted;                                               \
        va_copy(counted, values);                                      \
        while (va_arg(counted, char *))                                \
            count++;                                                   \
        va_end(counted);                                               \
        arguments = alloca((count + 1) * sizeof *arguments);           \
        arguments[0] = (char *)(uintptr_t)(first);                     \
        for (size_t i = 1; i <= count; i++)                            \
            arguments[i] = va_arg(values, char *);                     \
    } while (0)

static int wrap_execl(const char *path, const char *first, ...)
{
    char **arguments;
    va_list values;
    va_start(values, first);
    COLLECT(first, arguments, values);
    va_end(values);
    return wrap_execv(path, arguments);
}

static int wrap_execlp(const char *path, const char *first, ...)
{
    char **arguments;
    va_list values;
    va_start(values, first);
    COLLECT(first, arguments, values);
    va_end(values);
    return wrap_execvp(path, arguments);
}

static int wrap_execle(const char *path, const char *first, ...)
{
    char **arguments;
    va_list values;
    va_start(values, first);
    COLLECT(first, arguments, values);
    char *const *environment = va_arg(values, char *const *);
    va_end(values);
    return wrap_execve(path, arguments, environment);
}

static int wrap_fexecve(int file, char *const *arguments, char *const *environment)
{
    return REAL(fexecve)(file, arguments, HELD(environment));
}

static int wrap_execveat(int folder, const char *path, char *const *arguments,
                         char *const *environment, int flags)
{
    return REAL(execveat)(folder, path, arguments, HELD(environment), flags);
}

static int wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                            const posix_spawnattr_t *attributes, char *const *arguments,
                            char *const *environment)
{
    return REAL(posix_spawn)(pid, path, actions, attributes, arguments, HELD(environment));
}

static int wrap_posix_spawnp(pid_t *pid, const char *path,
                             const posix_spawn_file_actions_t *actions,
                             const posix_spawnattr_t *attributes, char *const *arguments,
                             char *const *environment)
{
    return REAL(posix_spawnp)(pid, path, actions, attributes, arguments, HELD(environment));
}

static const struct symbol_hook hooks[] = {
    WRAPPED(getenv),      WRAPPED(secure_getenv), WRAPPED(setenv),   WRAPPED(putenv),
    WRAPPED(unsetenv),    WRAPPED(clearenv),      WRAPPED(execve),   WRAPPED(execvpe),
    WRAPPED(execv),       WRAPPED(execvp),        WRAPPED(execl),    WRAPPED(execlp),
    WRAPPED(execle),      WRAPPED(fexecve),       WRAPPED(execveat), WRAPPED(posix_spawn),
    WRAPPED(posix_spawnp), WANTED(environ),
};

const struct symbol_hooks COPY_NAME(libc, COPY) = {hooks, sizeof hooks / sizeof *hooks};
