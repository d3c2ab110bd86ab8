/* Asks for managed memory by the way of calling that WAY names, first under and then over the
 * limit, and gives it back. Prints the three codes. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIRECT 0
#define DATA 1
#define LOOKED_UP 2

typedef int allocate(void **, size_t, unsigned);
typedef int release(void *);

#if WAY != LOOKED_UP
extern allocate hipMallocManaged;
extern release hipFree;
#endif

#if WAY == DATA
static struct {
    allocate *take;
    release *give;
} functions = {hipMallocManaged, hipFree};
#endif

#if WAY == LOOKED_UP
typedef int find_5(const char *, void **, int, unsigned long long, void *);
typedef int find_4(const char *, void **, unsigned long long, void *);
typedef void *find_1(const char *);

static void *look_up(void *library, const char *how, const char *name)
{
    void *found = NULL;
    if (strcmp(how, "dlvsym") == 0)
        return dlvsym(library, name, "hip_4.2");
    if (strcmp(how, "next") == 0)
        return dlsym(RTLD_NEXT, name);
    if (strcmp(how, "default") == 0)
        return dlsym(RTLD_DEFAULT, name);
    if (strncmp(how, "hipGetProcAddress", 17) == 0) {
        find_5 *find = (find_5 *)dlsym(library, how);
        int answer;
        return find && find(name, &found, 70200000, 0, &answer) == 0 ? found : NULL;
    }
    if (strncmp(how, "hipGetDriverEntryPoint", 22) == 0) {
        find_4 *find = (find_4 *)dlsym(library, how);
        int answer;
        return find && find(name, &found, 0, &answer) == 0 ? found : NULL;
    }
    return dlsym(library, name);
}

static void *open_library(const char *path, const char *how)
{
    if (strcmp(how, "dlmopen") == 0)
        return dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    if (strcmp(how, "deepbind") == 0)
        return dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    if (strcmp(how, "global") == 0 || strcmp(how, "default") == 0 || strcmp(how, "next") == 0)
        return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (strcmp(how, "local") == 0)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (strcmp(how, "noload") == 0)
        return dlopen(path, RTLD_LAZY) ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (strcmp(how, "again") == 0) {
        void *first = dlopen(path, RTLD_LAZY);
        if (first)
            dlclose(first);
    }
    return dlopen(path, RTLD_LAZY);
}
#endif

int main(int count, char **arguments)
{
    size_t under = strtoul(arguments[1], NULL, 10), over = strtoul(arguments[2], NULL, 10);
    void *first = NULL, *second = NULL;
#if WAY == DATA
    allocate *take = functions.take;
    release *give = functions.give;
#elif WAY == LOOKED_UP
    void *library = open_library(arguments[3], arguments[4]);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    allocate *take = (allocate *)look_up(library, arguments[4], "hipMallocManaged");
    release *give = (release *)look_up(library, arguments[4], "hipFree");
    if (!take || !give) {
        printf("absent\n");
        return 0;
    }
#else
#define take hipMallocManaged
#define give hipFree
#endif
    int granted = take(&first, under, 1);
    int refused = take(&second, over, 1);
    printf("%d %d %d\n", granted, refused, give(first));
    return 0;
}
