/* For libcs whose programs do not load the library: prints what it finds in its environment, then
 * uses threads, a child and memory, and says whether the library is mapped. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 1000 };

static int counted;

static void *work(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        free(malloc(4096));
        __atomic_fetch_add(&counted, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static void tell(const char *name)
{
    const char *value = getenv(name);
    printf("%s=%s\n", name, value ? value : "(unset)");
}

static int mapped(const char *text)
{
    static char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        found += strstr(line, text) != NULL;
    fclose(maps);
    return found;
}

int main(void)
{
    pthread_t threads[THREADS];
    int status = 0;
    tell("LD_AUDIT");
    tell("HSA_CU_MASK");
    setenv("HSA_CU_MASK", "mine", 1);
    printf("changed=%s\n", getenv("HSA_CU_MASK"));
    fflush(stdout);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    waitpid(child, &status, 0);
    printf("counted=%d\nchild=%d\nmapped=%d\n", counted, WEXITSTATUS(status),
           mapped("libamvgpu"));
    return 0;
}
