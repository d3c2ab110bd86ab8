/* The cheapest ROCr and HIP there can be, so that what the library adds is what is measured: one
 * GPU, addresses that are never memory. With -DHIP the part that is HIP. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t handle;
} handle;

typedef unsigned visit(handle, void *);

#ifndef HIP

static const uint64_t card = UINT64_C(64) << 30;

unsigned hsa_init(void)
{
    return 0;
}

unsigned hsa_iterate_agents(visit *call, void *data)
{
    return call((handle){2}, data);
}

unsigned hsa_agent_get_info(handle agent, int attribute, void *value)
{
    switch (attribute) {
    case 17: /* device: a GPU */
        *(uint32_t *)value = 1;
        return 0;
    case 0xA006: /* address */
        *(uint32_t *)value = 0x8300;
        return 0;
    case 0xA00F: /* domain */
        *(uint32_t *)value = 0;
        return 0;
    case 0xA015: /* memory available */
        *(uint64_t *)value = card;
        return 0;
    default:
        return 0x1001;
    }
}

unsigned hsa_amd_agent_iterate_memory_pools(handle agent, visit *call, void *data)
{
    return call((handle){20}, data);
}

unsigned hsa_agent_iterate_regions(handle agent, visit *call, void *data)
{
    return 0;
}

unsigned hsa_amd_memory_pool_get_info(handle pool, int attribute, void *value)
{
    *(uint32_t *)value = 0;
    return 0;
}

unsigned hsa_amd_memory_pool_allocate(handle pool, size_t bytes, uint32_t flags, void **pointer)
{
    static _Thread_local uint64_t last;
    last = last + 4096;
    *pointer = (void *)((uintptr_t)&last << 8 ^ (last & 0xffffff));
    return 0;
}

unsigned hsa_amd_memory_pool_free(void *pointer)
{
    return 0;
}

#else

extern unsigned hsa_init(void);
extern unsigned hsa_agent_get_info(handle, int, void *);
extern unsigned hsa_amd_memory_pool_allocate(handle, size_t, uint32_t, void **);
extern unsigned hsa_amd_memory_pool_free(void *);

int hipInit(unsigned flags)
{
    return (int)hsa_init();
}

int hipGetDevice(int *device)
{
    static int initialised; /* HIP begins with the first call, whichever it is */
    if (!initialised)
        initialised = hsa_init() == 0;
    *device = 0;
    return 0;
}

int hipDeviceGetPCIBusId(char *text, int length, int device)
{
    strcpy(text, "0000:83:00.0");
    return 0;
}

int hipMalloc(void **pointer, size_t bytes)
{
    return (int)hsa_amd_memory_pool_allocate((handle){20}, bytes, 0, pointer);
}

int hipMallocManaged(void **pointer, size_t bytes, unsigned flags)
{
    return hipMalloc(pointer, bytes);
}

int hipFree(void *pointer)
{
    return (int)hsa_amd_memory_pool_free(pointer);
}

int hipMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = (size_t)64 << 30;
    return (int)hsa_agent_get_info((handle){2}, 0xA015, free_bytes);
}

#endif
