/* Memory of pools and regions, physical memory by handle, and sharing between processes. */
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* ---- the file behind the memory of GPUs ---- */

static pthread_once_t vram_once = PTHREAD_ONCE_INIT;
static int vram = -1;
static _Atomic uint64_t vram_end;

static void open_vram(void)
{
    enum { OUT_OF_THE_WAY = 2000 }; /* of programs that close their files */
    int file = memfd_create("vram", MFD_CLOEXEC);
    vram = fcntl(file, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (vram < 0 || ftruncate(vram, (off_t)1 << 46))
        abort();
    close(file);
}

int vram_file(void)
{
    pthread_once(&vram_once, open_vram);
    return vram;
}

uint64_t vram_place(size_t bytes)
{
    return atomic_fetch_add(&vram_end, bytes);
}

void vram_discard(uint64_t offset, size_t bytes)
{
    fallocate(vram_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
              (off_t)bytes);
}

/* ---- pools and regions ---- */

struct allocation {
    struct allocation *next;
    char *start;
    size_t bytes;
    uint64_t agent;
    uint64_t offset; /* in the file of the GPUs' memory */
    pid_t owner;     /* a forked child has no hold on it */
    void *user_data;
};

static struct allocation *allocations;

static struct allocation *allocation_at(const void *pointer)
{
    const char *at = pointer;
    struct allocation *found = allocations;
    while (found && !(at >= found->start && at < found->start + found->bytes))
        found = found->next;
    return found;
}

/* The agent whose memory a pool is; an APU of one node with its CPU has the system's. */
static uint64_t owner_of(uint64_t pool)
{
    uint64_t agent = agent_of_pool(pool);
    return agent == CPU_AGENT && settings()->apu == APU_OF_ONE_NODE ? FIRST_GPU_AGENT : agent;
}

static hsa_status_t allocate(uint64_t pool, size_t bytes, void **pointer)
{
    uint64_t agent = owner_of(pool);
    if (bytes == 0)
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    if (bytes > SIZE_MAX - PAGE)
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    bytes = whole_pages(bytes);
    if (is_gpu(agent) && !account_take(agent, bytes))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    uint64_t offset = is_gpu(agent) ? vram_place(bytes) : 0;
    void *start = is_gpu(agent)
                      ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                             vram_file(), (off_t)offset)
                      : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct allocation *made = malloc(sizeof *made);
    if (start == MAP_FAILED || !made)
        abort();
    *made = (struct allocation){
        .start = start, .bytes = bytes, .agent = agent, .offset = offset, .owner = getpid()};
    pthread_mutex_lock(&lists);
    made->next = allocations;
    allocations = made;
    pthread_mutex_unlock(&lists);
    *pointer = start;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t release(void *pointer)
{
    pthread_mutex_lock(&lists);
    struct allocation **link = &allocations;
    while (*link && ((*link)->start != pointer || (*link)->owner != getpid()))
        link = &(*link)->next;
    struct allocation *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&lists);
    if (!gone)
        return HSA_STATUS_ERROR_INVALID_ALLOCATION;
    munmap(pointer, gone->bytes);
    if (is_gpu(gone->agent)) {
        vram_discard(gone->offset, gone->bytes);
        account_give(gone->agent, gone->bytes);
    }
    free(gone);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t pool, size_t bytes, uint32_t flags,
                                          void **pointer)
{
    return allocate(pool.handle, bytes, pointer);
}

hsa_status_t hsa_amd_memory_pool_free(void *pointer)
{
    return release(pointer);
}

hsa_status_t hsa_memory_allocate(hsa_region_t region, size_t bytes, void **pointer)
{
    return allocate(region.handle, bytes, pointer);
}

hsa_status_t hsa_memory_free(void *pointer)
{
    return release(pointer);
}

hsa_status_t hsa_amd_pointer_info(const void *pointer, hsa_amd_pointer_info_t *info,
                                  void *(*allocator)(size_t), uint32_t *count, hsa_agent_t **agents)
{
    pthread_mutex_lock(&lists);
    const struct allocation *found = allocation_at(pointer);
    info->type = found ? HSA_EXT_POINTER_TYPE_HSA : HSA_EXT_POINTER_TYPE_UNKNOWN;
    if (found) {
        info->agentBaseAddress = info->hostBaseAddress = found->start;
        info->sizeInBytes = found->bytes;
        info->userData = found->user_data;
        info->agentOwner.handle = found->agent;
        info->global_flags = is_gpu(found->agent) ? HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED
                                                  : HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
    }
    pthread_mutex_unlock(&lists);
    if (count)
        *count = 0;
    return HSA_STATUS_SUCCESS;
}

/* ---- physical memory by handle ---- */

struct physical {
    struct physical *next;
    size_t bytes;
    uint64_t agent; /* CPU_AGENT for one that was imported: its owner holds the memory */
    uint64_t offset;
    int file;
    int holders;
};

struct mapping {
    struct mapping *next;
    void *address;
    struct physical *of;
};

static struct mapping *mappings;
static struct physical *physicals;

static struct physical *enter_physical(struct physical like)
{
    struct physical *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = like;
    pthread_mutex_lock(&lists);
    made->next = physicals;
    physicals = made;
    pthread_mutex_unlock(&lists);
    return made;
}

/* The memory of a handle, NULL for a number that is none: HIP releases handle 0 where it could
 * not create one. */
static struct physical *physical_of(hsa_amd_vmem_alloc_handle_t handle)
{
    struct physical *found = physicals;
    while (found && (uintptr_t)found != handle.handle)
        found = found->next;
    return found;
}

static void drop(struct physical *held)
{
    if (--held->holders)
        return;
    struct physical **link = &physicals;
    while (*link != held)
        link = &(*link)->next;
    *link = held->next;
    if (is_gpu(held->agent)) {
        vram_discard(held->offset, held->bytes);
        account_give(held->agent, held->bytes);
    } else if (held->file != vram_file()) {
        close(held->file);
    }
    free(held);
}

hsa_status_t hsa_amd_vmem_address_reserve_align(void **address, size_t bytes, uint64_t wanted,
                                                uint64_t alignment, uint64_t flags)
{
    char *start = mmap((void *)wanted, bytes + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    if (alignment > PAGE)
        start = (char *)(((uintptr_t)start + alignment - 1) & ~(alignment - 1));
    *address = start;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_address_reserve(void **address, size_t bytes, uint64_t wanted,
                                          uint64_t flags)
{
    return hsa_amd_vmem_address_reserve_align(address, bytes, wanted, 2 << 20, flags);
}

hsa_status_t hsa_amd_vmem_address_free(void *address, size_t bytes)
{
    munmap(address, bytes);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_handle_create(hsa_amd_memory_pool_t pool, size_t bytes,
                                        hsa_amd_memory_type_t type, uint64_t flags,
                                        hsa_amd_vmem_alloc_handle_t *handle)
{
    uint64_t agent = agent_of_pool(pool.handle);
    if (is_gpu(agent) && !account_take(agent, bytes))
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    handle->handle = (uintptr_t)enter_physical(
        (struct physical){.bytes = bytes,
                          .agent = agent,
                          .offset = vram_place(whole_pages(bytes)),
                          .file = vram_file(),
                          .holders = 1});
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_handle_release(hsa_amd_vmem_alloc_handle_t handle)
{
    pthread_mutex_lock(&lists);
    struct physical *held = physical_of(handle);
    if (held)
        drop(held);
    pthread_mutex_unlock(&lists);
    return held ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_INVALID_ALLOCATION;
}

hsa_status_t hsa_amd_vmem_map(void *address, size_t bytes, size_t offset,
                              hsa_amd_vmem_alloc_handle_t handle, uint64_t flags)
{
    struct physical *of = (struct physical *)handle.handle;
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, of->file,
             (off_t)(of->offset + offset)) == MAP_FAILED)
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    struct mapping *made = malloc(sizeof *made);
    if (!made)
        abort();
    pthread_mutex_lock(&lists);
    *made = (struct mapping){mappings, address, of};
    mappings = made;
    of->holders++;
    pthread_mutex_unlock(&lists);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_unmap(void *address, size_t bytes)
{
    pthread_mutex_lock(&lists);
    struct mapping **link = &mappings;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct mapping *gone = *link;
    if (gone) {
        *link = gone->next;
        drop(gone->of);
        free(gone);
    }
    pthread_mutex_unlock(&lists);
    if (!gone)
        return HSA_STATUS_ERROR_INVALID_ALLOCATION;
    mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_retain_alloc_handle(hsa_amd_vmem_alloc_handle_t *handle, void *address)
{
    hsa_status_t status = HSA_STATUS_ERROR_INVALID_ALLOCATION;
    pthread_mutex_lock(&lists);
    for (struct mapping *at = mappings; at && status; at = at->next)
        if (at->address == address) {
            at->of->holders++;
            handle->handle = (uintptr_t)at->of;
            status = HSA_STATUS_SUCCESS;
        }
    pthread_mutex_unlock(&lists);
    return status;
}

hsa_status_t hsa_amd_vmem_set_access(void *address, size_t bytes,
                                     const hsa_amd_memory_access_desc_t *access, size_t count)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_get_access(void *address, hsa_access_permission_t *permission,
                                     hsa_agent_t agent)
{
    *permission = HSA_ACCESS_PERMISSION_RW;
    return HSA_STATUS_SUCCESS;
}

/* ---- sharing between processes ----
 *
 * What is handed on names the owner's file, and whoever gets it opens that. In the place of a
 * dma-buf stands a file with these numbers in it.
 */

struct exported {
    uint32_t pid;
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
};

static hsa_status_t write_dmabuf(struct exported memory, int *file)
{
    *file = memfd_create("dmabuf", MFD_CLOEXEC);
    return *file >= 0 && write(*file, &memory, sizeof memory) == sizeof memory
               ? HSA_STATUS_SUCCESS
               : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

static bool read_dmabuf(int file, struct exported *memory)
{
    return pread(file, memory, sizeof *memory, 0) == sizeof *memory;
}

/* The owner's file, -1 where the owner is gone. */
static int open_exported(const struct exported *memory)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%u", memory->pid, memory->file);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Memory of another that is mapped here. */
struct foreign {
    struct foreign *next;
    void *start;
    size_t bytes;
};

static struct foreign *foreigners;

static hsa_status_t map_exported(const struct exported *memory, size_t bytes, void **pointer)
{
    int file = open_exported(memory);
    struct foreign *made = malloc(sizeof *made);
    if (file < 0 || !made)
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    *pointer =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)memory->offset);
    close(file);
    if (*pointer == MAP_FAILED)
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    pthread_mutex_lock(&lists);
    *made = (struct foreign){foreigners, *pointer, bytes};
    foreigners = made;
    pthread_mutex_unlock(&lists);
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t unmap_exported(void *pointer)
{
    pthread_mutex_lock(&lists);
    struct foreign **link = &foreigners;
    while (*link && (*link)->start != pointer)
        link = &(*link)->next;
    struct foreign *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&lists);
    if (!gone)
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    munmap(gone->start, gone->bytes);
    free(gone);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_vmem_export_shareable_handle(int *file, hsa_amd_vmem_alloc_handle_t handle,
                                                  uint64_t flags)
{
    const struct physical *of = (struct physical *)handle.handle;
    return write_dmabuf(
        (struct exported){(uint32_t)getpid(), (uint32_t)of->file, of->offset, of->bytes}, file);
}

hsa_status_t hsa_amd_vmem_import_shareable_handle(int file, hsa_amd_vmem_alloc_handle_t *handle)
{
    struct exported memory;
    note_call("hsa_amd_vmem_import_shareable_handle");
    int owners = read_dmabuf(file, &memory) ? open_exported(&memory) : -1;
    if (owners < 0)
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    handle->handle = (uintptr_t)enter_physical((struct physical){.bytes = memory.bytes,
                                                                 .agent = CPU_AGENT,
                                                                 .offset = memory.offset,
                                                                 .file = owners,
                                                                 .holders = 1});
    return HSA_STATUS_SUCCESS;
}

/* The allocation of a GPU that a pointer lies in, from there to its end. */
static bool exported_at(const void *pointer, struct exported *memory)
{
    pthread_mutex_lock(&lists);
    const struct allocation *found = allocation_at(pointer);
    bool there = found && is_gpu(found->agent);
    if (there) {
        uint64_t inside = (uint64_t)((const char *)pointer - found->start);
        *memory = (struct exported){(uint32_t)getpid(), (uint32_t)vram_file(),
                                    found->offset + inside, found->bytes - inside};
    }
    pthread_mutex_unlock(&lists);
    return there;
}

hsa_status_t hsa_amd_ipc_memory_create(void *pointer, size_t bytes, hsa_amd_ipc_memory_t *handle)
{
    struct exported memory;
    if (!exported_at(pointer, &memory))
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &memory, sizeof memory);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_ipc_memory_attach(const hsa_amd_ipc_memory_t *handle, size_t bytes,
                                       uint32_t count, const hsa_agent_t *agents, void **pointer)
{
    struct exported memory;
    note_call("hsa_amd_ipc_memory_attach");
    memcpy(&memory, handle, sizeof memory);
    return map_exported(&memory, bytes, pointer);
}

hsa_status_t hsa_amd_ipc_memory_detach(void *pointer)
{
    return unmap_exported(pointer);
}

hsa_status_t hsa_amd_portable_export_dmabuf(const void *pointer, size_t bytes, int *file,
                                            uint64_t *offset)
{
    struct exported memory;
    *offset = 0;
    return exported_at(pointer, &memory) ? write_dmabuf(memory, file)
                                         : HSA_STATUS_ERROR_INVALID_ARGUMENT;
}

hsa_status_t hsa_amd_interop_map_buffer(uint32_t count, hsa_agent_t *agents, int handle,
                                        uint32_t flags, size_t *bytes, void **pointer,
                                        size_t *metadata_bytes, const void **metadata)
{
    struct exported memory;
    note_call("hsa_amd_interop_map_buffer");
    if (!read_dmabuf(handle, &memory))
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    *bytes = memory.bytes;
    if (metadata_bytes)
        *metadata_bytes = 0;
    if (metadata)
        *metadata = NULL;
    return map_exported(&memory, memory.bytes, pointer);
}

hsa_status_t hsa_amd_interop_unmap_buffer(void *pointer)
{
    return unmap_exported(pointer);
}

/* ---- host memory, and memory that moves ---- */

hsa_status_t hsa_amd_memory_lock(void *host, size_t bytes, hsa_agent_t *agents, int count,
                                 void **pointer)
{
    *pointer = host;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_lock_to_pool(void *host, size_t bytes, hsa_agent_t *agents, int count,
                                         hsa_amd_memory_pool_t pool, uint32_t flags, void **pointer)
{
    *pointer = host;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_unlock(void *host)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_memory_register(void *host, size_t bytes)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_memory_deregister(void *host, size_t bytes)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_svm_attributes_set(void *pointer, size_t bytes,
                                        hsa_amd_svm_attribute_pair_t *attributes, size_t count)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_svm_attributes_get(void *pointer, size_t bytes,
                                        hsa_amd_svm_attribute_pair_t *attributes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        attributes[i].value = 0;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_svm_prefetch_async(void *pointer, size_t bytes, hsa_agent_t agent,
                                        uint32_t count, const hsa_signal_t *after,
                                        hsa_signal_t completion)
{
    complete_signal(completion);
    return HSA_STATUS_SUCCESS;
}
