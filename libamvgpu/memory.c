#include "memory.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* headers older than the kernels that matter */
#endif

void *memory_of_process(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (madvise(memory, bytes, MADV_WIPEONFORK)) {
        munmap(memory, bytes);
        return NULL;
    }
    return memory;
}

void memory_return(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}
