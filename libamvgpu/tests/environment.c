/* Does to its environment what the arguments say, one after the other, and prints what each
 * reading gives:
 *
 *   get NAME | secure NAME      getenv, secure_getenv
 *   set NAME VALUE | put TEXT | unset NAME | clear
 *   swap                        points environ at an empty array of its own
 *   all                         every entry of environ, comma separated
 *   WAY PROGRAM ENTRY           runs PROGRAM with no environment but ENTRY, by execve, execvpe,
 *                               execle, fexecve, posix_spawn or posix_spawnp; by execv, execvp,
 *                               execl or execlp with a swapped environ
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void say(const char *value)
{
    printf("%s\n", value ? value : "(unset)");
    fflush(stdout);
}

static void run(const char *way, char *program, char *entry)
{
    char *arguments[] = {program, NULL};
    char *environment[] = {entry, NULL};
    pid_t pid;
    if (strcmp(way, "posix_spawn") == 0) {
        posix_spawn(&pid, program, NULL, NULL, arguments, environment);
    } else if (strcmp(way, "posix_spawnp") == 0) {
        posix_spawnp(&pid, program, NULL, NULL, arguments, environment);
    } else if ((pid = vfork()) == 0) {
        if (strcmp(way, "execve") == 0)
            execve(program, arguments, environment);
        if (strcmp(way, "execvpe") == 0)
            execvpe(program, arguments, environment);
        if (strcmp(way, "execle") == 0)
            execle(program, program, (char *)NULL, environment);
        if (strcmp(way, "fexecve") == 0)
            fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, environment);
        environ = environment;
        if (strcmp(way, "execv") == 0)
            execv(program, arguments);
        if (strcmp(way, "execvp") == 0)
            execvp(program, arguments);
        if (strcmp(way, "execl") == 0)
            execl(program, program, (char *)NULL);
        if (strcmp(way, "execlp") == 0)
            execlp(program, program, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        const char *command = arguments[i];
        if (strcmp(command, "get") == 0) {
            say(getenv(arguments[++i]));
        } else if (strcmp(command, "secure") == 0) {
            say(secure_getenv(arguments[++i]));
        } else if (strcmp(command, "set") == 0) {
            setenv(arguments[i + 1], arguments[i + 2], 1);
            i += 2;
        } else if (strcmp(command, "put") == 0) {
            putenv(arguments[++i]);
        } else if (strcmp(command, "unset") == 0) {
            unsetenv(arguments[++i]);
        } else if (strcmp(command, "clear") == 0) {
            clearenv();
        } else if (strcmp(command, "swap") == 0) {
            static char *none[] = {NULL};
            environ = none;
        } else if (strcmp(command, "all") == 0) {
            for (char **entry = environ; entry && *entry; entry++)
                printf("%s%s", entry == environ ? "" : ",", *entry);
            printf("\n");
            fflush(stdout);
        } else {
            run(command, arguments[i + 1], arguments[i + 2]);
            i += 2;
        }
    }
    return 0;
}
