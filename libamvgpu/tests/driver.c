/* Takes and gives device memory on command, so that a test can look at the accounts between two
 * steps. One command per line on stdin, one line of answer: an error code of HIP or ROCr, then
 * what was asked for.
 *
 *   device N          hipSetDevice
 *   count             code and number of devices (hipGetDeviceCount)
 *   address           code and PCI address of the device
 *   context N         hipCtxCreate on device N, and hipCtxSetCurrent
 *   pool N            memory pools are made for device N, whichever is current
 *   take ENTRY BYTES  an allocation; answers its code and, on success, its number
 *   threads ENTRY BYTES  the same by two threads at once, of which the first has set device 0 and
 *                     the second device 1; both codes and the number of the first
 *   peer N            hipDeviceEnablePeerAccess of the current device to device N
 *   access NUMBER N   device N may use an allocation of a pool (hipMemPoolSetAccess) or a mapped
 *                     one (hipMemSetAccess)
 *   copy TO FROM BYTES  hipMemcpyPeer between two numbers, from device 1 to device 0
 *   give NUMBER       its release
 *   trim              what a program can do to give unused memory of pools back
 *   reset             hipDeviceReset
 *   reset N           hipDevicePrimaryCtxReset of device N
 *   offer ENTRY NUMBER  an allocation for another process, by the way that ENTRY imports; its code
 *                     and what the other needs, in one word
 *   import ENTRY WORD BYTES  what another offers; answers as take does
 *   poke NUMBER BYTE  writes into memory as a device would; peek NUMBER reads
 *   info              code, free, total (hipMemGetInfo), hipDeviceTotalMem, totalGlobalMem
 *   properties NAME   code and totalGlobalMem of a symbol of hipGetDeviceProperties
 *   hsa               ROCr's size and largest allocation of the first pool and region of device 0
 *   pools             size and largest allocation of each pool of global memory of the device;
 *   regions           and of each region
 *   integrated        code, and whether HIP takes the device for a part of its host
 *   fork | clone      goes on in a child (by libc, or by a bare system call), and ends with it
 *   vfork PATH        runs a program in the child of vfork; answers its exit status
 *   exec              starts itself anew in the same process
 *   become PATH       turns into `PATH 60`
 *   close             closes all files from 3 on, as daemons do
 *
 * Built once per HIP version, with that version's headers.
 */
#include <hip/hip_runtime_api.h>
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef HSA_TEST_HEADERS_WITHOUT_VMEM
#define HAVE_VMEM 1
#else
#define HAVE_VMEM 0
#endif

enum { MOST = 4096, WIDTH = 4096, ARRAY_WIDTH = 16384 /* texels of four bytes */ };

struct held {
    const struct entry *entry;
    void *pointer;
    void *second; /* stream, pool, address: whatever the release needs as well */
    size_t bytes;
};

struct entry {
    const char *name;
    int (*take)(struct held *held, size_t bytes);
    int (*give)(struct held *held);
};

static _Thread_local int device, pool_device;
static _Thread_local hipStream_t stream; /* of its own: HIP 5.2 does not survive hipMallocAsync without one */

#define CHECK(call)             \
    do {                        \
        int status = (int)(call); \
        if (status)             \
            return status;      \
    } while (0)

/* ---- linear memory ---- */

static int give_free(struct held *held)
{
    return hipFree(held->pointer);
}

static int take_malloc(struct held *held, size_t bytes)
{
    return hipMalloc(&held->pointer, bytes);
}

static int take_ext(struct held *held, size_t bytes)
{
    return hipExtMallocWithFlags(&held->pointer, bytes, hipDeviceMallocDefault);
}

static int take_ext_fine(struct held *held, size_t bytes)
{
    return hipExtMallocWithFlags(&held->pointer, bytes, hipDeviceMallocFinegrained);
}

static int take_pitch(struct held *held, size_t bytes)
{
    size_t pitch;
    return hipMallocPitch(&held->pointer, &pitch, WIDTH, bytes / WIDTH);
}

static int take_mem_pitch(struct held *held, size_t bytes)
{
    size_t pitch;
    return hipMemAllocPitch(&held->pointer, &pitch, WIDTH, bytes / WIDTH, 16);
}

static int take_3d(struct held *held, size_t bytes)
{
    hipPitchedPtr pitched = {0};
    hipExtent extent = {WIDTH, 16, bytes / WIDTH / 16};
    int status = hipMalloc3D(&pitched, extent);
    held->pointer = pitched.ptr;
    return status;
}

static int take_managed(struct held *held, size_t bytes)
{
    return hipMallocManaged(&held->pointer, bytes, hipMemAttachGlobal);
}

/* ---- in the order of a stream ---- */

static int take_async(struct held *held, size_t bytes)
{
    if (!stream)
        CHECK(hipStreamCreate(&stream));
    CHECK(hipMallocAsync(&held->pointer, bytes, stream));
    return hipStreamSynchronize(stream);
}

static int give_async(struct held *held)
{
    CHECK(hipFreeAsync(held->pointer, stream));
    return hipStreamSynchronize(stream);
}

static int take_of_pool(struct held *held, size_t bytes, hipMemAllocationHandleType sharing)
{
    hipMemPoolProps properties = {0};
    hipMemPool_t pool;
    if (!stream)
        CHECK(hipStreamCreate(&stream));
    properties.allocType = hipMemAllocationTypePinned;
    properties.handleTypes = sharing;
    properties.location.type = hipMemLocationTypeDevice;
    properties.location.id = pool_device;
    CHECK(hipMemPoolCreate(&pool, &properties));
    held->second = pool;
    /* HIP 7.2 does not survive the end of a pool that could not allocate: it is left alone. */
    CHECK(hipMallocFromPoolAsync(&held->pointer, bytes, pool, stream));
    return hipStreamSynchronize(stream);
}

static int take_pool(struct held *held, size_t bytes)
{
    return take_of_pool(held, bytes, hipMemHandleTypeNone);
}

static int give_pool(struct held *held)
{
    CHECK(hipFreeAsync(held->pointer, stream));
    CHECK(hipStreamSynchronize(stream));
    return hipMemPoolDestroy(held->second);
}

static int give_pool_trim(struct held *held)
{
    CHECK(hipFreeAsync(held->pointer, stream));
    CHECK(hipStreamSynchronize(stream));
    return hipMemPoolTrimTo(held->second, 0);
}

/* ---- physical memory ---- */

static int create(void **handle, size_t bytes, hipMemAllocationHandleType sharing)
{
    hipMemAllocationProp properties = {0};
    properties.type = hipMemAllocationTypePinned;
    properties.requestedHandleType = sharing;
    properties.location.type = hipMemLocationTypeDevice;
    properties.location.id = device;
    return hipMemCreate((hipMemGenericAllocationHandle_t *)handle, bytes, &properties, 0);
}

static int take_create(struct held *held, size_t bytes)
{
    return create(&held->pointer, bytes, hipMemHandleTypeNone);
}

static int give_create(struct held *held)
{
    return hipMemRelease(held->pointer);
}

/* Released while it is mapped: the memory lives until it is unmapped. */
static int take_mapped(struct held *held, size_t bytes)
{
    CHECK(take_create(held, bytes));
    CHECK(hipMemAddressReserve(&held->second, bytes, 0, NULL, 0));
    CHECK(hipMemMap(held->second, bytes, 0, (hipMemGenericAllocationHandle_t)held->pointer, 0));
    return hipMemRelease((hipMemGenericAllocationHandle_t)held->pointer);
}

static int give_mapped(struct held *held)
{
    CHECK(hipMemUnmap(held->second, held->bytes));
    return hipMemAddressFree(held->second, held->bytes);
}

static int take_retained(struct held *held, size_t bytes)
{
    hipMemGenericAllocationHandle_t retained;
    CHECK(take_create(held, bytes));
    CHECK(hipMemAddressReserve(&held->second, bytes, 0, NULL, 0));
    CHECK(hipMemMap(held->second, bytes, 0, (hipMemGenericAllocationHandle_t)held->pointer, 0));
    CHECK(hipMemRetainAllocationHandle(&retained, held->second));
    CHECK(hipMemRelease((hipMemGenericAllocationHandle_t)held->pointer));
    CHECK(hipMemUnmap(held->second, bytes));
    CHECK(hipMemAddressFree(held->second, bytes));
    held->pointer = retained;
    return 0;
}

static int take_reserve(struct held *held, size_t bytes)
{
    return hipMemAddressReserve(&held->pointer, bytes, 0, NULL, 0);
}

static int give_reserve(struct held *held)
{
    return hipMemAddressFree(held->pointer, held->bytes);
}

/* ---- arrays: one channel of four bytes ---- */

static hipChannelFormatDesc format(void)
{
    hipChannelFormatDesc made = {32, 0, 0, 0, hipChannelFormatKindFloat};
    return made;
}

static int give_array(struct held *held)
{
    return hipFreeArray(held->pointer);
}

static int give_array_destroy(struct held *held)
{
    return hipArrayDestroy(held->pointer);
}

static int take_array(struct held *held, size_t bytes)
{
    hipChannelFormatDesc channels = format();
    return hipMallocArray((hipArray_t *)&held->pointer, &channels, ARRAY_WIDTH, bytes / ARRAY_WIDTH / 4,
                          hipArrayDefault);
}

static int take_array_3d(struct held *held, size_t bytes)
{
    hipChannelFormatDesc channels = format();
    hipExtent extent = {ARRAY_WIDTH, 64, bytes / ARRAY_WIDTH / 4 / 64};
    return hipMalloc3DArray((hipArray_t *)&held->pointer, &channels, extent, hipArrayDefault);
}

static int take_array_create(struct held *held, size_t bytes)
{
    HIP_ARRAY_DESCRIPTOR descriptor = {0};
    descriptor.Width = ARRAY_WIDTH;
    descriptor.Height = bytes / ARRAY_WIDTH / 4;
    descriptor.Format = HIP_AD_FORMAT_FLOAT;
    descriptor.NumChannels = 1;
    return hipArrayCreate((hipArray_t *)&held->pointer, &descriptor);
}

static int take_array_3d_create(struct held *held, size_t bytes)
{
    HIP_ARRAY3D_DESCRIPTOR descriptor = {0};
    descriptor.Width = ARRAY_WIDTH;
    descriptor.Height = 64;
    descriptor.Depth = bytes / ARRAY_WIDTH / 4 / 64;
    descriptor.Format = HIP_AD_FORMAT_FLOAT;
    descriptor.NumChannels = 1;
    return hipArray3DCreate((hipArray_t *)&held->pointer, &descriptor);
}

static int take_mipmapped(struct held *held, size_t bytes)
{
    hipChannelFormatDesc channels = format();
    hipExtent extent = {ARRAY_WIDTH, bytes / ARRAY_WIDTH / 4, 0};
    return hipMallocMipmappedArray((hipMipmappedArray_t *)&held->pointer, &channels, extent, 1, 0);
}

static int give_mipmapped(struct held *held)
{
    return hipFreeMipmappedArray(held->pointer);
}

/* Of no levels: with any other number HIP 5.2 takes it for an error. */
static int take_mipmapped_create(struct held *held, size_t bytes)
{
    HIP_ARRAY3D_DESCRIPTOR descriptor = {0};
    descriptor.Width = ARRAY_WIDTH;
    descriptor.Height = bytes / ARRAY_WIDTH / 4;
    descriptor.Format = HIP_AD_FORMAT_FLOAT;
    descriptor.NumChannels = 1;
    return hipMipmappedArrayCreate((hipMipmappedArray_t *)&held->pointer, &descriptor, 0);
}

static int give_mipmapped_destroy(struct held *held)
{
    return hipMipmappedArrayDestroy(held->pointer);
}

/* ---- a graph with a node that allocates ---- */

#ifndef HIP_TEST_HEADERS_WITHOUT_GRAPH_MEMORY
static int take_graph(struct held *held, size_t bytes)
{
    hipGraph_t graph;
    hipGraphNode_t node;
    hipGraphExec_t executable;
    hipMemAllocNodeParams parameters;
    memset(&parameters, 0, sizeof parameters);
    parameters.poolProps.allocType = hipMemAllocationTypePinned;
    parameters.poolProps.location.type = hipMemLocationTypeDevice;
    parameters.poolProps.location.id = device;
    parameters.bytesize = bytes;
    CHECK(hipGraphCreate(&graph, 0));
    CHECK(hipGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
    CHECK(hipGraphInstantiate(&executable, graph, NULL, NULL, 0));
    int status = hipGraphLaunch(executable, stream);
    if (!status)
        status = hipStreamSynchronize(stream);
    held->pointer = parameters.dptr;
    held->second = executable;
    return status;
}

static int give_graph(struct held *held)
{
    CHECK(hipFreeAsync(held->pointer, stream));
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipGraphExecDestroy(held->second));
    return hipDeviceGraphMemTrim(device);
}
#endif

/* ---- system memory ---- */

static int take_host(struct held *held, size_t bytes)
{
    return hipHostMalloc(&held->pointer, bytes, hipHostMallocDefault);
}

static int take_host_alloc(struct held *held, size_t bytes)
{
    return hipHostAlloc(&held->pointer, bytes, hipHostMallocDefault);
}

static int take_malloc_host(struct held *held, size_t bytes)
{
    return hipMallocHost(&held->pointer, bytes);
}

static int take_mem_alloc_host(struct held *held, size_t bytes)
{
    return hipMemAllocHost(&held->pointer, bytes);
}

static int give_host(struct held *held)
{
    return hipHostFree(held->pointer);
}

static int take_registered(struct held *held, size_t bytes)
{
    held->pointer = aligned_alloc(4096, bytes);
    return hipHostRegister(held->pointer, bytes, hipHostRegisterDefault);
}

static int give_registered(struct held *held)
{
    int status = hipHostUnregister(held->pointer);
    free(held->pointer);
    return status;
}

/* ---- ROCr itself ---- */

struct search {
    int skip; /* GPUs before the wanted one */
    hsa_agent_t agent;
    hsa_amd_memory_pool_t pool;
    hsa_region_t region;
};

static hsa_status_t find_agent(hsa_agent_t agent, void *data)
{
    struct search *search = data;
    hsa_device_type_t type;
    hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    if (type != HSA_DEVICE_TYPE_GPU || search->skip--)
        return HSA_STATUS_SUCCESS;
    search->agent = agent;
    return HSA_STATUS_INFO_BREAK;
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data)
{
    ((struct search *)data)->pool = pool;
    return HSA_STATUS_INFO_BREAK;
}

static hsa_status_t find_fine_pool(hsa_amd_memory_pool_t pool, void *data)
{
    uint32_t segment, flags;
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, &flags);
    if (segment != HSA_AMD_SEGMENT_GLOBAL || flags & HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED)
        return HSA_STATUS_SUCCESS;
    return find_pool(pool, data);
}

static hsa_status_t find_region(hsa_region_t region, void *data)
{
    ((struct search *)data)->region = region;
    return HSA_STATUS_INFO_BREAK;
}

static hsa_status_t find_last_region(hsa_region_t region, void *data)
{
    ((struct search *)data)->region = region;
    return HSA_STATUS_SUCCESS;
}

static struct search search_device(void)
{
    struct search search = {.skip = device};
    hsa_init();
    hsa_iterate_agents(find_agent, &search);
    hsa_amd_agent_iterate_memory_pools(search.agent, find_pool, &search);
    hsa_agent_iterate_regions(search.agent, find_region, &search);
    return search;
}

static int take_hsa_pool(struct held *held, size_t bytes)
{
    return hsa_amd_memory_pool_allocate(search_device().pool, bytes, 0, &held->pointer);
}

static int give_hsa_pool(struct held *held)
{
    return hsa_amd_memory_pool_free(held->pointer);
}

/* Of a GPU with memory that is its own or its host's; fine-grained, or so in an extended scope. */
static int take_hsa_fine_pool(struct held *held, size_t bytes)
{
    struct search search = search_device();
    hsa_amd_agent_iterate_memory_pools(search.agent, find_fine_pool, &search);
    return hsa_amd_memory_pool_allocate(search.pool, bytes, 0, &held->pointer);
}

static int take_hsa_region(struct held *held, size_t bytes)
{
    return hsa_memory_allocate(search_device().region, bytes, &held->pointer);
}

/* ROCr lists those of the system after the GPU's own. */
static int take_hsa_system_region(struct held *held, size_t bytes)
{
    struct search search = search_device();
    hsa_agent_iterate_regions(search.agent, find_last_region, &search);
    return hsa_memory_allocate(search.region, bytes, &held->pointer);
}

static int give_hsa_region(struct held *held)
{
    return hsa_memory_free(held->pointer);
}

static int take_hsa_lock(struct held *held, size_t bytes)
{
    struct search found = search_device();
    held->second = aligned_alloc(4096, bytes);
    return hsa_amd_memory_lock(held->second, bytes, &found.agent, 1, &held->pointer);
}

static int give_hsa_lock(struct held *held)
{
    int status = hsa_amd_memory_unlock(held->second);
    free(held->second);
    return status;
}

#if HAVE_VMEM
static int take_hsa_reserve(struct held *held, size_t bytes)
{
    return hsa_amd_vmem_address_reserve(&held->pointer, bytes, 0, 0);
}

static int give_hsa_reserve(struct held *held)
{
    return hsa_amd_vmem_address_free(held->pointer, held->bytes);
}

static int take_hsa_vmem(struct held *held, size_t bytes)
{
    hsa_amd_vmem_alloc_handle_t handle;
    CHECK(hsa_amd_vmem_handle_create(search_device().pool, bytes, MEMORY_TYPE_NONE, 0, &handle));
    held->pointer = (void *)handle.handle;
    return 0;
}

static int give_hsa_vmem(struct held *held)
{
    return hsa_amd_vmem_handle_release((hsa_amd_vmem_alloc_handle_t){(uintptr_t)held->pointer});
}

/* Held by two mappings after its handle was released. */
static int take_hsa_mapped(struct held *held, size_t bytes)
{
    hsa_amd_vmem_alloc_handle_t handle, retained;
    CHECK(hsa_amd_vmem_handle_create(search_device().pool, bytes, MEMORY_TYPE_NONE, 0, &handle));
    CHECK(hsa_amd_vmem_address_reserve(&held->pointer, 2 * bytes, 0, 0));
    held->second = (char *)held->pointer + bytes;
    CHECK(hsa_amd_vmem_map(held->pointer, bytes, 0, handle, 0));
    CHECK(hsa_amd_vmem_retain_alloc_handle(&retained, held->pointer));
    CHECK(hsa_amd_vmem_map(held->second, bytes, 0, retained, 0));
    CHECK(hsa_amd_vmem_handle_release(retained));
    return hsa_amd_vmem_handle_release(handle);
}

static int give_hsa_mapped(struct held *held)
{
    CHECK(hsa_amd_vmem_unmap(held->pointer, held->bytes));
    return hsa_amd_vmem_unmap(held->second, held->bytes);
}
#endif

/* ---- memory that another process holds ---- */

/* What goes from one program to the other. A file would go through a socket; it is opened here by
 * its number in the process that offers it. */
static struct offer {
    int pid, file;
    unsigned char data[64];
} offered;

static int offered_file(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", offered.pid, offered.file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int offer_ipc(const struct held *held, struct offer *offer)
{
    return hipIpcGetMemHandle((hipIpcMemHandle_t *)offer->data, held->pointer);
}

static int import_ipc(struct held *held, size_t bytes)
{
    hipIpcMemHandle_t handle;
    memcpy(&handle, offered.data, sizeof handle);
    return hipIpcOpenMemHandle(&held->pointer, handle, hipIpcMemLazyEnablePeerAccess);
}

static int give_ipc(struct held *held)
{
    return hipIpcCloseMemHandle(held->pointer);
}

/* Physical memory that can be exported: `pointer` is where it is mapped, `second` its handle. */
static int map_physical(struct held *held, size_t bytes)
{
    CHECK(hipMemAddressReserve(&held->pointer, bytes, 0, NULL, 0));
    return hipMemMap(held->pointer, bytes, 0, (hipMemGenericAllocationHandle_t)held->second, 0);
}

static int take_physical(struct held *held, size_t bytes)
{
    CHECK(create(&held->second, bytes, hipMemHandleTypePosixFileDescriptor));
    return map_physical(held, bytes);
}

static int give_physical(struct held *held)
{
    CHECK(hipMemUnmap(held->pointer, held->bytes));
    CHECK(hipMemAddressFree(held->pointer, held->bytes));
    return hipMemRelease((hipMemGenericAllocationHandle_t)held->second);
}

static int offer_physical(const struct held *held, struct offer *offer)
{
    return hipMemExportToShareableHandle(&offer->file,
                                         (hipMemGenericAllocationHandle_t)held->second,
                                         hipMemHandleTypePosixFileDescriptor, 0);
}

static int import_physical(struct held *held, size_t bytes)
{
    int file = offered_file();
#if HIP_VERSION >= 70100000 /* since then the number itself */
    void *shared = (void *)(intptr_t)file;
#else
    void *shared = &file;
#endif
    CHECK(hipMemImportFromShareableHandle((hipMemGenericAllocationHandle_t *)&held->second, shared,
                                          hipMemHandleTypePosixFileDescriptor));
    close(file);
    return map_physical(held, bytes);
}

static int take_pool_to_share(struct held *held, size_t bytes)
{
    return take_of_pool(held, bytes, hipMemHandleTypePosixFileDescriptor);
}

static int offer_pool(const struct held *held, struct offer *offer)
{
    CHECK(hipMemPoolExportToShareableHandle(&offer->file, held->second,
                                            hipMemHandleTypePosixFileDescriptor, 0));
    return hipMemPoolExportPointer((hipMemPoolPtrExportData *)offer->data, held->pointer);
}

static int import_pool(struct held *held, size_t bytes)
{
    if (!stream)
        CHECK(hipStreamCreate(&stream));
    CHECK(hipMemPoolImportFromShareableHandle((hipMemPool_t *)&held->second,
                                              (void *)(intptr_t)offered_file(),
                                              hipMemHandleTypePosixFileDescriptor, 0));
    return hipMemPoolImportPointer(&held->pointer, held->second,
                                   (hipMemPoolPtrExportData *)offered.data);
}

/* Newer than the headers of HIP 5.2. */
extern hsa_status_t hsa_amd_portable_export_dmabuf(const void *pointer, size_t bytes, int *file,
                                                   uint64_t *offset);

static int offer_dmabuf(const struct held *held, struct offer *offer)
{
    uint64_t offset;
    return hsa_amd_portable_export_dmabuf(held->pointer, held->bytes, &offer->file, &offset);
}

static int import_external(struct held *held, size_t bytes)
{
    hipExternalMemoryHandleDesc description = {0};
    hipExternalMemoryBufferDesc buffer = {0};
    description.type = hipExternalMemoryHandleTypeOpaqueFd;
    description.handle.fd = offered_file();
    description.size = buffer.size = bytes;
    CHECK(hipImportExternalMemory((hipExternalMemory_t *)&held->second, &description));
    return hipExternalMemoryGetMappedBuffer(&held->pointer, held->second, &buffer);
}

static int give_external(struct held *held)
{
    return hipDestroyExternalMemory(held->second);
}

static int offer_hsa_ipc(const struct held *held, struct offer *offer)
{
    return hsa_amd_ipc_memory_create(held->pointer, held->bytes,
                                     (hsa_amd_ipc_memory_t *)offer->data);
}

static int import_hsa_ipc(struct held *held, size_t bytes)
{
    struct search found = search_device();
    return hsa_amd_ipc_memory_attach((hsa_amd_ipc_memory_t *)offered.data, bytes, 1, &found.agent,
                                     &held->pointer);
}

static int give_hsa_ipc(struct held *held)
{
    return hsa_amd_ipc_memory_detach(held->pointer);
}

static int import_hsa_interop(struct held *held, size_t bytes)
{
    struct search found = search_device();
    int file = offered_file();
    size_t size;
    int status = hsa_amd_interop_map_buffer(1, &found.agent, file, 0, &size, &held->pointer, NULL,
                                            NULL);
    close(file);
    return status;
}

static int give_hsa_interop(struct held *held)
{
    return hsa_amd_interop_unmap_buffer(held->pointer);
}

#if HAVE_VMEM
static int map_hsa_physical(struct held *held, size_t bytes)
{
    hsa_amd_vmem_alloc_handle_t handle = {(uintptr_t)held->second};
    CHECK(hsa_amd_vmem_address_reserve(&held->pointer, bytes, 0, 0));
    return hsa_amd_vmem_map(held->pointer, bytes, 0, handle, 0);
}

static int take_hsa_physical(struct held *held, size_t bytes)
{
    hsa_amd_vmem_alloc_handle_t handle;
    CHECK(hsa_amd_vmem_handle_create(search_device().pool, bytes, MEMORY_TYPE_NONE, 0, &handle));
    held->second = (void *)handle.handle;
    return map_hsa_physical(held, bytes);
}

static int give_hsa_physical(struct held *held)
{
    CHECK(hsa_amd_vmem_unmap(held->pointer, held->bytes));
    CHECK(hsa_amd_vmem_address_free(held->pointer, held->bytes));
    return hsa_amd_vmem_handle_release((hsa_amd_vmem_alloc_handle_t){(uintptr_t)held->second});
}

static int offer_hsa_physical(const struct held *held, struct offer *offer)
{
    return hsa_amd_vmem_export_shareable_handle(
        &offer->file, (hsa_amd_vmem_alloc_handle_t){(uintptr_t)held->second}, 0);
}

static int import_hsa_physical(struct held *held, size_t bytes)
{
    hsa_amd_vmem_alloc_handle_t handle;
    int file = offered_file();
    CHECK(hsa_amd_vmem_import_shareable_handle(file, &handle));
    close(file);
    held->second = (void *)handle.handle;
    return map_hsa_physical(held, bytes);
}
#endif

/* Ways of handing memory on: `take` imports what is offered. */
static const struct way {
    struct entry entry;
    int (*offer)(const struct held *held, struct offer *offer);
} ways[] = {
    {{"hipIpcOpenMemHandle", import_ipc, give_ipc}, offer_ipc},
    {{"hipMemImportFromShareableHandle", import_physical, give_physical}, offer_physical},
    {{"hipMemPoolImportPointer", import_pool, give_async}, offer_pool},
    {{"hipExternalMemoryGetMappedBuffer", import_external, give_external}, offer_dmabuf},
    {{"hsa_amd_ipc_memory_attach", import_hsa_ipc, give_hsa_ipc}, offer_hsa_ipc},
    {{"hsa_amd_interop_map_buffer", import_hsa_interop, give_hsa_interop}, offer_dmabuf},
#if HAVE_VMEM
    {{"hsa_amd_vmem_import_shareable_handle", import_hsa_physical, give_hsa_physical},
     offer_hsa_physical},
#endif
};

static const struct entry entries[] = {
    {"hipMalloc", take_malloc, give_free},
    {"hipMalloc+hipFreeAsync", take_malloc, give_async},
    {"hipExtMallocWithFlags", take_ext, give_free},
    {"hipExtMallocWithFlags+fine", take_ext_fine, give_free},
    {"hipMallocPitch", take_pitch, give_free},
    {"hipMemAllocPitch", take_mem_pitch, give_free},
    {"hipMalloc3D", take_3d, give_free},
    {"hipMallocManaged", take_managed, give_free},
    {"hipMallocManaged+hipFreeAsync", take_managed, give_async},
    {"hipMallocAsync", take_async, give_async},
    {"hipMallocAsync+hipFree", take_async, give_free},
    {"hipMallocFromPoolAsync", take_pool, give_pool},
    {"hipMallocFromPoolAsync+hipMemPoolTrimTo", take_pool, give_pool_trim},
    {"hipMemCreate", take_create, give_create},
    {"hipMemCreate+hipMemMap", take_mapped, give_mapped},
    {"hipMemCreate+hipMemRetainAllocationHandle", take_retained, give_create},
    {"hipMemCreate+hipMemExportToShareableHandle", take_physical, give_physical},
    {"hipMallocFromPoolAsync+hipMemPoolExportPointer", take_pool_to_share, give_pool_trim},
    {"hipMemAddressReserve", take_reserve, give_reserve},
    {"hipMallocArray", take_array, give_array},
    {"hipMalloc3DArray", take_array_3d, give_array},
    {"hipArrayCreate", take_array_create, give_array_destroy},
    {"hipArray3DCreate", take_array_3d_create, give_array_destroy},
    {"hipMallocMipmappedArray", take_mipmapped, give_mipmapped},
    {"hipMipmappedArrayCreate", take_mipmapped_create, give_mipmapped_destroy},
#ifndef HIP_TEST_HEADERS_WITHOUT_GRAPH_MEMORY
    {"hipGraphAddMemAllocNode", take_graph, give_graph},
#endif
    {"hipHostMalloc", take_host, give_host},
    {"hipHostAlloc", take_host_alloc, give_host},
    {"hipMallocHost", take_malloc_host, give_host},
    {"hipMemAllocHost", take_mem_alloc_host, give_host},
    {"hipHostRegister", take_registered, give_registered},
    {"hsa_amd_memory_lock", take_hsa_lock, give_hsa_lock},
    {"hsa_amd_memory_pool_allocate", take_hsa_pool, give_hsa_pool},
    {"hsa_amd_memory_pool_allocate+fine", take_hsa_fine_pool, give_hsa_pool},
    {"hsa_memory_allocate", take_hsa_region, give_hsa_region},
    {"hsa_memory_allocate+system", take_hsa_system_region, give_hsa_region},
#if HAVE_VMEM
    {"hsa_amd_vmem_address_reserve", take_hsa_reserve, give_hsa_reserve},
    {"hsa_amd_vmem_handle_create", take_hsa_vmem, give_hsa_vmem},
    {"hsa_amd_vmem_map", take_hsa_mapped, give_hsa_mapped},
    {"hsa_amd_vmem_export_shareable_handle", take_hsa_physical, give_hsa_physical},
#endif
};

static struct held holdings[MOST];
static unsigned count;

static const struct entry *find_entry(const char *name)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

static const struct way *find_way(const char *name)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].entry.name, name) == 0)
            return &ways[i];
    return NULL;
}

static void command_take(const struct entry *entry, size_t bytes)
{
    if (!entry) {
        printf("absent\n");
        return;
    }
    struct held held = {.entry = entry, .bytes = bytes};
    int status = entry->take(&held, bytes);
    if (status)
        hipGetLastError();
    else
        holdings[count++] = held;
    printf("%d %u %p\n", status, count - 1, held.pointer);
}

struct worker {
    pthread_t thread;
    int device, status;
    struct held held;
};

static pthread_barrier_t both;

static void *work(void *data)
{
    struct worker *worker = data;
    device = pool_device = worker->device;
    worker->status = (int)hipSetDevice(device);
    pthread_barrier_wait(&both); /* either device is set when the first memory is taken */
    if (!worker->status)
        worker->status = worker->held.entry->take(&worker->held, worker->held.bytes);
    pthread_barrier_wait(&both);
    return NULL;
}

static void command_threads(const char *name, size_t bytes)
{
    struct worker workers[2];
    unsigned first = count;
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) {
        workers[i] = (struct worker){.device = i, .held = {.entry = find_entry(name), .bytes = bytes}};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(workers[i].thread, NULL);
        if (!workers[i].status)
            holdings[count++] = workers[i].held;
    }
    printf("%d %d %u\n", workers[0].status, workers[1].status, first);
}

static void command_access(unsigned number, int peer)
{
    const struct held *held = &holdings[number];
    hipMemAccessDesc access = {0};
    access.location.type = hipMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = hipMemAccessFlagsProtReadWrite;
    int status = (int)(held->entry->take == take_pool
                           ? hipMemPoolSetAccess(held->second, &access, 1)
                           : hipMemSetAccess(held->second, held->bytes, &access, 1));
    printf("%d\n", status);
}

static void command_copy(unsigned to, unsigned from, size_t bytes)
{
    int status = (int)hipMemcpyPeer(holdings[to].pointer, 0, holdings[from].pointer, 1, bytes);
    printf("%d\n", status);
}

/* totalGlobalMem follows the name; in the newer layout a UUID and a LUID stand between them. */
static void command_properties(const char *name)
{
    enum { OLD_OFFSET = 256, NEW_OFFSET = 288 };
    static char properties[65536];
    hipError_t (*ask)(void *, int) = (hipError_t(*)(void *, int))dlsym(RTLD_DEFAULT, name);
    size_t total, offset = strstr(name, "R0600") ? NEW_OFFSET : OLD_OFFSET;
    if (!ask) {
        printf("absent\n");
        return;
    }
    int status = (int)ask(properties, device);
    memcpy(&total, properties + offset, sizeof total);
    printf("%d %zu\n", status, total);
}

static void command_info(void)
{
    size_t free_bytes = 0, total = 0, device_total = 0;
    hipDeviceProp_t properties;
    memset(&properties, 0, sizeof properties);
    int status = hipMemGetInfo(&free_bytes, &total);
    status = status ? status : (int)hipDeviceTotalMem(&device_total, device);
    status = status ? status : (int)hipGetDeviceProperties(&properties, device);
    printf("%d %zu %zu %zu %zu\n", status, free_bytes, total, device_total,
           properties.totalGlobalMem);
}

static void command_count(void)
{
    int devices = 0;
    int status = (int)hipGetDeviceCount(&devices);
    printf("%d %d\n", status, devices);
}

static void command_address(void)
{
    char address[64] = "";
    int status = (int)hipDeviceGetPCIBusId(address, sizeof address, device);
    printf("%d %s\n", status, address);
}

static void command_hsa(void)
{
    struct search found = search_device();
    size_t pool_size = 0, pool_most = 0, region_size = 0, region_most = 0;
    uint64_t available = 0;
    int status = (int)hsa_amd_memory_pool_get_info(found.pool, HSA_AMD_MEMORY_POOL_INFO_SIZE,
                                                   &pool_size);
    hsa_amd_memory_pool_get_info(found.pool, HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE, &pool_most);
    hsa_region_get_info(found.region, HSA_REGION_INFO_SIZE, &region_size);
    hsa_region_get_info(found.region, HSA_REGION_INFO_ALLOC_MAX_SIZE, &region_most);
    hsa_agent_get_info(found.agent, (hsa_agent_info_t)0xA015, &available);
    printf("%d %zu %zu %zu %zu %zu\n", status, pool_size, pool_most, region_size, region_most,
           (size_t)available);
}

static hsa_status_t print_pool(hsa_amd_memory_pool_t pool, void *data)
{
    uint32_t segment;
    size_t size, most;
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SIZE, &size);
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE, &most);
    if (segment == HSA_AMD_SEGMENT_GLOBAL)
        printf("%zu %zu ", size, most);
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t print_region(hsa_region_t region, void *data)
{
    uint32_t segment;
    size_t size, most;
    hsa_region_get_info(region, HSA_REGION_INFO_SEGMENT, &segment);
    hsa_region_get_info(region, HSA_REGION_INFO_SIZE, &size);
    hsa_region_get_info(region, HSA_REGION_INFO_ALLOC_MAX_SIZE, &most);
    if (segment == HSA_REGION_SEGMENT_GLOBAL)
        printf("%zu %zu ", size, most);
    return HSA_STATUS_SUCCESS;
}

static void command_integrated(void)
{
    int integrated = -1;
    int status = (int)hipDeviceGetAttribute(&integrated, hipDeviceAttributeIntegrated, device);
    printf("%d %d\n", status, integrated);
}

static void command_offer(const char *name, unsigned number)
{
    const struct way *way = find_way(name);
    struct offer offer = {.pid = getpid(), .file = -1};
    printf("%d ", way && number < count ? way->offer(&holdings[number], &offer) : -1);
    for (size_t i = 0; i < sizeof offer; i++)
        printf("%02x", ((unsigned char *)&offer)[i]);
    printf("\n");
}

static void command_import(const char *name, const char *word, size_t bytes)
{
    const struct way *way = find_way(name);
    for (size_t i = 0; i < sizeof offered; i++)
        sscanf(word + 2 * i, "%2hhx", &((unsigned char *)&offered)[i]);
    command_take(way ? &way->entry : NULL, bytes);
}

static void command_fork(bool bare)
{
    pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (child > 0) {
        waitpid(child, NULL, 0);
        _exit(0);
    }
    printf("%d\n", child);
}

static void command_vfork(const char *path)
{
    int status = -1;
    pid_t child = vfork();
    if (child == 0) {
        execl(path, path, (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
}

/* With the arguments the kernel was given: ld.so may be the program that runs. */
static void command_exec(void)
{
    static char text[65536];
    char *arguments[256];
    size_t count = 0;
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = fread(text, 1, sizeof text - 1, file);
    for (size_t at = 0; at < length; at += strlen(text + at) + 1)
        arguments[count++] = text + at;
    arguments[count] = NULL;
    execv(arguments[0], arguments);
    _exit(127);
}

int main(void)
{
    char line[512], name[128], word[256];
    unsigned long number, second, bytes;
    setvbuf(stdin, NULL, _IONBF, 0); /* what was read ahead would be lost in exec */
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "device %lu", &number) == 1) {
            device = pool_device = (int)number;
            printf("%d\n", hipSetDevice(device));
        } else if (strcmp(line, "count\n") == 0) {
            command_count();
        } else if (strcmp(line, "address\n") == 0) {
            command_address();
        } else if (sscanf(line, "context %lu", &number) == 1) {
            hipCtx_t context;
            int status = (int)hipCtxCreate(&context, 0, (int)number);
            printf("%d\n", status ? status : (int)hipCtxSetCurrent(context));
        } else if (sscanf(line, "pool %lu", &number) == 1) {
            pool_device = (int)number;
            printf("0\n");
        } else if (sscanf(line, "take %127s %lu", name, &number) == 2) {
            command_take(find_entry(name), number);
        } else if (sscanf(line, "threads %127s %lu", name, &number) == 2) {
            command_threads(name, number);
        } else if (sscanf(line, "peer %lu", &number) == 1) {
            printf("%d\n", hipDeviceEnablePeerAccess((int)number, 0));
        } else if (sscanf(line, "access %lu %lu", &number, &second) == 2) {
            command_access((unsigned)number, (int)second);
        } else if (sscanf(line, "copy %lu %lu %lu", &number, &second, &bytes) == 3) {
            command_copy((unsigned)number, (unsigned)second, bytes);
        } else if (sscanf(line, "give %lu", &number) == 1) {
            printf("%d\n", holdings[number].entry->give(&holdings[number]));
        } else if (strcmp(line, "trim\n") == 0) {
            hipMemPool_t pool;
            int status = (int)hipDeviceGetDefaultMemPool(&pool, device);
            printf("%d\n", status ? status : (int)hipMemPoolTrimTo(pool, 0));
        } else if (sscanf(line, "reset %lu", &number) == 1) {
            printf("%d\n", hipDevicePrimaryCtxReset((int)number));
        } else if (strcmp(line, "reset\n") == 0) {
            printf("%d\n", hipDeviceReset());
        } else if (sscanf(line, "properties %127s", name) == 1) {
            command_properties(name);
        } else if (strcmp(line, "info\n") == 0) {
            command_info();
        } else if (strcmp(line, "hsa\n") == 0) {
            command_hsa();
        } else if (strcmp(line, "pools\n") == 0) {
            hsa_amd_agent_iterate_memory_pools(search_device().agent, print_pool, NULL);
            printf("\n");
        } else if (strcmp(line, "regions\n") == 0) {
            hsa_agent_iterate_regions(search_device().agent, print_region, NULL);
            printf("\n");
        } else if (strcmp(line, "integrated\n") == 0) {
            command_integrated();
        } else if (sscanf(line, "offer %127s %lu", name, &number) == 2) {
            command_offer(name, (unsigned)number);
        } else if (sscanf(line, "import %127s %255s %lu", name, word, &bytes) == 3) {
            command_import(name, word, bytes);
        } else if (sscanf(line, "poke %lu %lu", &number, &second) == 2) {
            *(volatile unsigned char *)holdings[number].pointer = (unsigned char)second;
            printf("0\n");
        } else if (sscanf(line, "peek %lu", &number) == 1) {
            printf("%u\n", *(volatile unsigned char *)holdings[number].pointer);
        } else if (strcmp(line, "fork\n") == 0) {
            command_fork(false);
        } else if (strcmp(line, "clone\n") == 0) {
            command_fork(true);
        } else if (sscanf(line, "vfork %127s", name) == 1) {
            command_vfork(name);
        } else if (strcmp(line, "exec\n") == 0) {
            command_exec();
        } else if (sscanf(line, "become %127s", name) == 1) {
            execl(name, name, "60", (char *)NULL);
        } else if (strcmp(line, "close\n") == 0) {
            for (int file = 3; file < 1024; file++)
                close(file);
            printf("0\n");
        } else {
            printf("unknown command\n");
        }
        fflush(stdout);
    }
    return 0;
}
