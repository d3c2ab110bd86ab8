/* Opens each library that is named, allocates from the first GPU's first pool through it and
 * prints the code; with a number of rounds, opens and closes each that often. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t handle;
} handle;

static int allocate_once(void *library, size_t bytes, void **pointer)
{
    int (*init)(void) = (int (*)(void))dlsym(library, "hsa_init");
    int (*allocate)(handle, size_t, uint32_t, void **) =
        (int (*)(handle, size_t, uint32_t, void **))dlsym(library, "hsa_amd_memory_pool_allocate");
    int status = init();
    return status ? status : allocate((handle){20}, bytes, 0, pointer); /* the stand-in's numbers */
}

int main(int count, char **arguments)
{
    size_t bytes = strtoul(arguments[1], NULL, 10);
    unsigned long rounds = strtoul(arguments[2], NULL, 10);
    for (int i = 3; i < count; i++) {
        unsigned long failed = 0;
        for (unsigned long round = 0; round < rounds; round++) {
            void *library = dlopen(arguments[i], RTLD_NOW), *pointer = NULL;
            int status = allocate_once(library, bytes, &pointer);
            failed += status != 0;
            if (rounds == 1) {
                printf("%d ", status);
                continue;
            }
            int (*release)(void *) = (int (*)(void *))dlsym(library, "hsa_amd_memory_pool_free");
            failed += release(pointer) != 0;
            dlclose(library);
            failed += dlopen(arguments[i], RTLD_NOW | RTLD_NOLOAD) != NULL; /* it is gone */
        }
        if (rounds > 1)
            printf("%lu ", failed);
    }
    printf("\n");
    return 0;
}
