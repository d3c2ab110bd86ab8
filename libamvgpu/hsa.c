/* Wrappers of ROCr. All device memory that HIP obtains comes through these functions, as does
 * that of programs which use ROCr directly, so it is counted here and exact.
 *
 * Declarations follow the HSA specification 1.2 and hsa_ext_amd.h; only what is needed.
 */
#include <stdint.h>

#include "account.h"
#include "copies.h"
#include "devices.h"
#include "environment.h"
#include "log.h"
#include "pointers.h"

typedef unsigned status; /* hsa_status_t */
typedef struct {
    uint64_t handle;
} handle;      /* hsa_agent_t, hsa_amd_memory_pool_t, hsa_region_t, hsa_amd_vmem_alloc_handle_t */
typedef int attribute; /* the enumerations of the info functions */

enum {
    SUCCESS = 0,
    INVALID_ALLOCATION = 0x1003,
    OUT_OF_RESOURCES = 0x1008,
    AGENT_INFO_DEVICE = 17,
    AGENT_INFO_BDFID = 0xA006,
    AGENT_INFO_DOMAIN = 0xA00F,
    AGENT_INFO_MEMORY_AVAIL = 0xA015,
    DEVICE_TYPE_GPU = 1,
    INFO_SEGMENT = 0, /* of a pool and of a region */
    SEGMENT_GLOBAL = 0,
    POOL_INFO_SIZE = 2,
    POOL_INFO_ALLOC_MAX_SIZE = 16,
    REGION_INFO_SIZE = 2,
    REGION_INFO_ALLOC_MAX_SIZE = 4,
    PRIORITY_LOW = 0,
    PRIORITY_NORMAL = 1,
    PRIORITY_HIGH = 2,
    GRANULE = 4096
};

typedef status visit_handle(handle, void *);

ENTRY(status, hsa_init, void);
ENTRY(status, hsa_iterate_agents, visit_handle *, void *);
ENTRY(status, hsa_agent_get_info, handle, attribute, void *);
ENTRY(status, hsa_agent_iterate_regions, handle, visit_handle *, void *);
ENTRY(status, hsa_amd_agent_iterate_memory_pools, handle, visit_handle *, void *);
ENTRY(status, hsa_amd_memory_pool_get_info, handle, attribute, void *);
ENTRY(status, hsa_region_get_info, handle, attribute, void *);
ENTRY(status, hsa_amd_memory_pool_allocate, handle, size_t, uint32_t, void **);
ENTRY(status, hsa_amd_memory_pool_free, void *);
ENTRY(status, hsa_memory_allocate, handle, size_t, void **);
ENTRY(status, hsa_memory_free, void *);
ENTRY(status, hsa_amd_vmem_handle_create, handle, size_t, int, uint64_t, handle *);
ENTRY(status, hsa_amd_vmem_handle_release, handle);
ENTRY(status, hsa_amd_vmem_map, void *, size_t, size_t, handle, uint64_t);
ENTRY(status, hsa_amd_vmem_unmap, void *, size_t);
ENTRY(status, hsa_amd_vmem_retain_alloc_handle, handle *, void *);
ENTRY(status, hsa_queue_create, handle, uint32_t, uint32_t, void (*)(status, void *, void *), void *,
      uint32_t, uint32_t, void **);
ENTRY(status, hsa_amd_queue_set_priority, void *, int);

/* ---- the devices ---- */

struct scan {
    bool gpus; /* or all agents but these */
    unsigned count;
    int device;  /* whose memory the pools and regions of the agent are */
    bool memory; /* the agent has a pool of memory */
    int system;  /* whose memory the system's is */
};

/* The pools of a GPU's agent are its memory, whether VRAM or, of an APU, GTT; except those of other
 * segments: the memory of a work group is on the chip and not to be had by allocation. */
static status enter_pool(handle pool, void *context)
{
    struct scan *scan = context;
    uint32_t segment = SEGMENT_GLOBAL;
    REAL(hsa_amd_memory_pool_get_info)(pool, INFO_SEGMENT, &segment);
    scan->memory |= segment == SEGMENT_GLOBAL;
    devices_enter(HANDLE_POOL, pool.handle, segment == SEGMENT_GLOBAL ? scan->device : DEVICE_HOST);
    return SUCCESS;
}

static status enter_region(handle region, void *context)
{
    const struct scan *scan = context;
    uint32_t segment = SEGMENT_GLOBAL;
    REAL(hsa_region_get_info)(region, INFO_SEGMENT, &segment);
    devices_enter(HANDLE_REGION, region.handle,
                  segment == SEGMENT_GLOBAL ? scan->device : DEVICE_HOST);
    return SUCCESS;
}

static status enter_agent(handle agent, void *context)
{
    struct scan *scan = context;
    uint32_t type = 0;
    REAL(hsa_agent_get_info)(agent, AGENT_INFO_DEVICE, &type);
    if ((type == DEVICE_TYPE_GPU) != scan->gpus)
        return SUCCESS;
    scan->device = scan->system;
    if (scan->gpus) {
        struct pci_address address = {0};
        REAL(hsa_agent_get_info)(agent, AGENT_INFO_BDFID, &address.location);
        REAL(hsa_agent_get_info)(agent, AGENT_INFO_DOMAIN, &address.domain);
        devices_enter_address(scan->count, address);
        scan->device = (int)scan->count++;
    }
    devices_enter(HANDLE_AGENT, agent.handle, scan->gpus ? scan->device : DEVICE_HOST);
    scan->memory = false;
    if (real_hsa_amd_agent_iterate_memory_pools)
        REAL(hsa_amd_agent_iterate_memory_pools)(agent, enter_pool, scan);
    if (real_hsa_agent_iterate_regions)
        REAL(hsa_agent_iterate_regions)(agent, enter_region, scan);
    /* An APU that shares its node with the CPU (before Linux 6.6) has no pool: HIP gives it the
     * system's, and what is taken of that counts as its memory. */
    if (scan->gpus && !scan->memory)
        scan->system = scan->device;
    return SUCCESS;
}

/* ROCr lists the system's regions with each GPU, too: the CPU's agent comes last and has the say. */
static void scan_agents(void)
{
    struct scan scan = {.gpus = true, .system = DEVICE_HOST};
    if (!real_hsa_iterate_agents || !real_hsa_agent_get_info)
        return;
    REAL(hsa_iterate_agents)(enter_agent, &scan);
    scan.gpus = false;
    REAL(hsa_iterate_agents)(enter_agent, &scan);
    log_line(LOG_DEBUG, "ROCr shows %u GPUs", scan.count);
}

static status wrap_hsa_init(void)
{
    status result = REAL(hsa_init)();
    if (result == SUCCESS)
        scan_agents(); /* each time: after a shutdown the handles are others */
    return result;
}

/* The device of a pool or region. One that was never seen is looked for once more; its device
 * stays unknown when it is not there, and then it is refused. */
static int device_of(enum handle_kind kind, handle of)
{
    int device = devices_of(kind, of.handle);
    if (device == DEVICE_UNKNOWN) {
        scan_agents();
        device = devices_of(kind, of.handle);
        if (device == DEVICE_UNKNOWN)
            log_line(LOG_ERROR,
                     "expected a memory pool or region that ROCr lists, found %lx; refused",
                     of.handle);
    }
    return device;
}

/* ---- the counting ---- */

static uint64_t whole_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - GRANULE ? UINT64_MAX : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Enters what was reserved under its address or handle. An entry that is in the way was freed
 * unseen, so that its bytes are given back. */
static bool enter(enum pointer_kind kind, uint64_t key, struct holding holding)
{
    struct holding displaced;
    if (!pointers_add(kind, key, holding, &displaced))
        return false;
    account_release(displaced.device, displaced.bytes);
    return true;
}

static status no_room(void)
{
    log_line(LOG_ERROR, "expected memory for the ledger of pointers, found none; the allocation is "
                        "undone");
    return OUT_OF_RESOURCES;
}

static status wrap_hsa_amd_memory_pool_allocate(handle pool, size_t size, uint32_t flags,
                                                void **pointer)
{
    int device = device_of(HANDLE_POOL, pool);
    if (device == DEVICE_HOST)
        return REAL(hsa_amd_memory_pool_allocate)(pool, size, flags, pointer);
    struct holding holding = {whole_granules(size), (unsigned)device};
    if (device == DEVICE_UNKNOWN || !account_reserve(holding.device, holding.bytes))
        return OUT_OF_RESOURCES;
    status result = REAL(hsa_amd_memory_pool_allocate)(pool, size, flags, pointer);
    if (result == SUCCESS && !enter(POINTER_POOL, (uintptr_t)*pointer, holding)) {
        REAL(hsa_amd_memory_pool_free)(*pointer);
        result = no_room();
    }
    if (result != SUCCESS)
        account_release(holding.device, holding.bytes);
    return result;
}

static status wrap_hsa_memory_allocate(handle region, size_t size, void **pointer)
{
    int device = device_of(HANDLE_REGION, region);
    if (device == DEVICE_HOST)
        return REAL(hsa_memory_allocate)(region, size, pointer);
    struct holding holding = {whole_granules(size), (unsigned)device};
    if (device == DEVICE_UNKNOWN || !account_reserve(holding.device, holding.bytes))
        return OUT_OF_RESOURCES;
    status result = REAL(hsa_memory_allocate)(region, size, pointer);
    if (result == SUCCESS && !enter(POINTER_POOL, (uintptr_t)*pointer, holding)) {
        REAL(hsa_memory_free)(*pointer);
        result = no_room();
    }
    if (result != SUCCESS)
        account_release(holding.device, holding.bytes);
    return result;
}

/* The entry goes before the memory does: another thread may be given the address at once. */
static status free_with(status (*free_memory)(void *), void *pointer)
{
    struct holding holding;
    bool held = pointers_drop(POINTER_POOL, (uintptr_t)pointer, &holding);
    status result = free_memory(pointer);
    if (!held)
        return result;
    if (result == SUCCESS)
        account_release(holding.device, holding.bytes);
    else
        enter(POINTER_POOL, (uintptr_t)pointer, holding);
    return result;
}

static status wrap_hsa_amd_memory_pool_free(void *pointer)
{
    return free_with(REAL(hsa_amd_memory_pool_free), pointer);
}

static status wrap_hsa_memory_free(void *pointer)
{
    return free_with(REAL(hsa_memory_free), pointer);
}

/* ---- physical memory by handle: it lives until the last release and the last unmap ---- */

static status wrap_hsa_amd_vmem_handle_create(handle pool, size_t size, int type, uint64_t flags,
                                              handle *created)
{
    int device = device_of(HANDLE_POOL, pool);
    if (device == DEVICE_HOST)
        return REAL(hsa_amd_vmem_handle_create)(pool, size, type, flags, created);
    struct holding holding = {whole_granules(size), (unsigned)device};
    if (device == DEVICE_UNKNOWN || !account_reserve(holding.device, holding.bytes))
        return OUT_OF_RESOURCES;
    status result = REAL(hsa_amd_vmem_handle_create)(pool, size, type, flags, created);
    if (result == SUCCESS && !enter(POINTER_HANDLE, created->handle, holding)) {
        REAL(hsa_amd_vmem_handle_release)(*created);
        result = no_room();
    }
    if (result != SUCCESS)
        account_release(holding.device, holding.bytes);
    return result;
}

static void drop_handle(uint64_t dropped)
{
    struct holding holding;
    if (pointers_drop(POINTER_HANDLE, dropped, &holding))
        account_release(holding.device, holding.bytes);
}

static status wrap_hsa_amd_vmem_handle_release(handle released)
{
    struct holding holding;
    /* HIP 6 and 7 release handle 0 where they could not create one; ROCr need not see it. */
    if (!released.handle)
        return INVALID_ALLOCATION;
    bool last = pointers_drop(POINTER_HANDLE, released.handle, &holding);
    status result = REAL(hsa_amd_vmem_handle_release)(released);
    if (result == SUCCESS && last)
        account_release(holding.device, holding.bytes);
    else if (result != SUCCESS && last)
        enter(POINTER_HANDLE, released.handle, holding);
    else if (result != SUCCESS)
        pointers_retain(POINTER_HANDLE, released.handle);
    return result;
}

static status wrap_hsa_amd_vmem_map(void *address, size_t size, size_t offset, handle mapped,
                                    uint64_t flags)
{
    status result = REAL(hsa_amd_vmem_map)(address, size, offset, mapped, flags);
    /* A handle that was imported is not ours to count. */
    if (result == SUCCESS && pointers_retain(POINTER_HANDLE, mapped.handle)) {
        struct holding mapping = {.bytes = mapped.handle}, displaced;
        if (pointers_add(POINTER_MAPPING, (uintptr_t)address, mapping, &displaced) &&
            displaced.bytes)
            drop_handle(displaced.bytes);
    }
    return result;
}

static status wrap_hsa_amd_vmem_unmap(void *address, size_t size)
{
    struct holding mapping, displaced;
    bool held = pointers_drop(POINTER_MAPPING, (uintptr_t)address, &mapping);
    status result = REAL(hsa_amd_vmem_unmap)(address, size);
    if (held && result == SUCCESS)
        drop_handle(mapping.bytes);
    else if (held)
        pointers_add(POINTER_MAPPING, (uintptr_t)address, mapping, &displaced);
    return result;
}

static status wrap_hsa_amd_vmem_retain_alloc_handle(handle *retained, void *address)
{
    status result = REAL(hsa_amd_vmem_retain_alloc_handle)(retained, address);
    if (result == SUCCESS)
        pointers_retain(POINTER_HANDLE, retained->handle);
    return result;
}

/* ---- the reports ---- */

static void cap(void *value, uint64_t most)
{
    uint64_t *bytes = value;
    if (*bytes > most)
        *bytes = most;
}

/* Memory scaled above the card's is served from managed memory and shown in full. */
static void show_total(void *value, unsigned device)
{
    uint64_t limit = account_limit(device);
    if (limit != REGION_NO_LIMIT && environment_oversubscribed())
        *(uint64_t *)value = limit;
    else
        cap(value, limit);
}

static status wrap_hsa_amd_memory_pool_get_info(handle pool, attribute asked, void *value)
{
    status result = REAL(hsa_amd_memory_pool_get_info)(pool, asked, value);
    if (result == SUCCESS && (asked == POOL_INFO_SIZE || asked == POOL_INFO_ALLOC_MAX_SIZE)) {
        int device = devices_of(HANDLE_POOL, pool.handle);
        if (device >= 0)
            show_total(value, (unsigned)device);
    }
    return result;
}

static status wrap_hsa_region_get_info(handle region, attribute asked, void *value)
{
    status result = REAL(hsa_region_get_info)(region, asked, value);
    if (result == SUCCESS && (asked == REGION_INFO_SIZE || asked == REGION_INFO_ALLOC_MAX_SIZE)) {
        int device = devices_of(HANDLE_REGION, region.handle);
        if (device >= 0)
            show_total(value, (unsigned)device);
    }
    return result;
}

static status wrap_hsa_agent_get_info(handle agent, attribute asked, void *value)
{
    status result = REAL(hsa_agent_get_info)(agent, asked, value);
    if (result == SUCCESS && asked == AGENT_INFO_MEMORY_AVAIL) {
        int device = devices_of(HANDLE_AGENT, agent.handle);
        devices_saw_query(device);
        if (device >= 0 && environment_oversubscribed() &&
            account_limit((unsigned)device) != REGION_NO_LIMIT)
            *(uint64_t *)value = account_left((unsigned)device);
        else if (device >= 0)
            cap(value, account_left((unsigned)device));
    }
    return result;
}

/* ---- the priority of queues ---- */

/* The priority that the pod chose, else the one that is wanted. */
static int priority_of_task(int wanted)
{
    switch (environment_task_priority()) {
    case TASK_PRIORITY_HIGH:
        return PRIORITY_HIGH;
    case TASK_PRIORITY_LOW:
        return PRIORITY_LOW;
    default:
        return wanted;
    }
}

static status wrap_hsa_queue_create(handle agent, uint32_t size, uint32_t type,
                                    void (*callback)(status, void *, void *), void *data,
                                    uint32_t private_bytes, uint32_t group_bytes, void **queue)
{
    status result = REAL(hsa_queue_create)(agent, size, type, callback, data, private_bytes,
                                           group_bytes, queue);
    int priority = priority_of_task(PRIORITY_NORMAL);
    if (result == SUCCESS && priority != PRIORITY_NORMAL && real_hsa_amd_queue_set_priority)
        REAL(hsa_amd_queue_set_priority)(*queue, priority);
    return result;
}

/* HIP sets the priority of its streams after creating their queues; the pod's own stands. */
static status wrap_hsa_amd_queue_set_priority(void *queue, int wanted)
{
    return REAL(hsa_amd_queue_set_priority)(queue, priority_of_task(wanted));
}

static const struct symbol_hook hooks[] = {
    WRAPPED(hsa_init),
    WRAPPED(hsa_amd_memory_pool_allocate),
    WRAPPED(hsa_amd_memory_pool_free),
    WRAPPED(hsa_memory_allocate),
    WRAPPED(hsa_memory_free),
    WRAPPED(hsa_amd_vmem_handle_create),
    WRAPPED(hsa_amd_vmem_handle_release),
    WRAPPED(hsa_amd_vmem_map),
    WRAPPED(hsa_amd_vmem_unmap),
    WRAPPED(hsa_amd_vmem_retain_alloc_handle),
    WRAPPED(hsa_amd_memory_pool_get_info),
    WRAPPED(hsa_region_get_info),
    WRAPPED(hsa_agent_get_info),
    WRAPPED(hsa_queue_create),
    WRAPPED(hsa_amd_queue_set_priority),
    WANTED(hsa_iterate_agents),
    WANTED(hsa_agent_iterate_regions),
    WANTED(hsa_amd_agent_iterate_memory_pools),
};

const struct symbol_hooks COPY_NAME(hsa, COPY) = {hooks, sizeof hooks / sizeof *hooks};
