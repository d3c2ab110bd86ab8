/* Wrappers of HIP, for what cannot be seen at ROCr's level (hsa.c): managed memory, which has no
 * pool behind it; arrays, which HIP would put into host memory where the device has no room;
 * refusals that HIP does not tell; and finding functions by name.
 *
 * Declarations follow hip_runtime_api.h; only what is needed.
 */
#include <stdint.h>
#include <string.h>

#include "account.h"
#include "copies.h"
#include "devices.h"
#include "environment.h"
#include "log.h"
#include "pointers.h"

typedef int error; /* hipError_t */

enum {
    SUCCESS = 0,
    OUT_OF_MEMORY = 2,
    ATTACH_GLOBAL = 1, /* hipMemAttachGlobal */
    LOCATION_DEVICE = 1 /* hipMemLocationTypeDevice */
};

/* hipMemAllocNodeParams, of which hipMemPoolProps is the first 88 bytes. */
struct node_parameters {
    int type;
    int handle_type;
    int location_type;
    int location_id;
    char pool[72];
    const void *access;
    size_t access_count;
    size_t bytes;
    void *pointer;
};

ENTRY(error, hipGetDevice, int *);
ENTRY(error, hipSetDevice, int);
ENTRY(error, hipDeviceGetPCIBusId, char *, int, int);
ENTRY(error, hipMalloc, void **, size_t);
ENTRY(error, hipMallocManaged, void **, size_t, unsigned);
ENTRY(error, hipFree, void *);
ENTRY(error, hipFreeAsync, void *, void *);
ENTRY(error, hipHostFree, void *);
ENTRY(error, hipMallocArray, void **, const void *, size_t, size_t, unsigned);
ENTRY(error, hipMallocMipmappedArray, void **, const void *, size_t, size_t, size_t, unsigned,
      unsigned);
ENTRY(error, hipArrayCreate, void **, const void *);
ENTRY(error, hipArray3DCreate, void **, const void *);
ENTRY(error, hipMipmappedArrayCreate, void **, const void *, unsigned);
ENTRY(error, hipFreeArray, void *);
ENTRY(error, hipFreeMipmappedArray, void *);
ENTRY(error, hipMipmappedArrayDestroy, void *);
ENTRY(error, hipMallocAsync, void **, size_t, void *);
ENTRY(error, hipMallocFromPoolAsync, void **, size_t, void *, void *);
ENTRY(error, hipGraphAddMemAllocNode, void **, void *, void *const *, size_t,
      struct node_parameters *);
ENTRY(error, hipMemGetInfo, size_t *, size_t *);
ENTRY(error, hipDeviceReset, void);
ENTRY(error, hipDevicePrimaryCtxReset, int);
ENTRY(error, hipGetProcAddress, const char *, void **, int, uint64_t, void *);
ENTRY(error, hipGetProcAddress_spt, const char *, void **, int, uint64_t, void *);
ENTRY(error, hipGetDriverEntryPoint, const char *, void **, unsigned long long, void *);
ENTRY(error, hipGetDriverEntryPoint_spt, const char *, void **, unsigned long long, void *);

/* By value on the stack, 24 bytes, so that the wrapper needs the same shape. */
struct extent {
    size_t width, height, depth;
};
ENTRY(error, hipMalloc3DArray, void **, const void *, struct extent, unsigned);

/* ---- ordinals of HIP and devices of ROCr ---- */

static bool hexadecimal(const char **text, uint32_t *number)
{
    const char *start = *text;
    for (*number = 0;; (*text)++) {
        char digit = **text;
        unsigned value = digit >= '0' && digit <= '9'   ? (unsigned)(digit - '0')
                         : digit >= 'a' && digit <= 'f' ? (unsigned)(digit - 'a' + 10)
                         : digit >= 'A' && digit <= 'F' ? (unsigned)(digit - 'A' + 10)
                                                        : 16;
        if (value > 15)
            return *text > start;
        *number = *number * 16 + value;
    }
}

/* Reads "0000:83:00.0". */
static bool read_address(const char *text, struct pci_address *address)
{
    uint32_t bus, slot, part;
    if (!hexadecimal(&text, &address->domain) || *text++ != ':' || !hexadecimal(&text, &bus) ||
        *text++ != ':' || !hexadecimal(&text, &slot) || *text++ != '.' ||
        !hexadecimal(&text, &part))
        return false;
    address->location = bus << 8 | slot << 3 | part;
    return true;
}

/* Sees which agent HIP asks for its free memory: the way for partitions, which share one PCI
 * address. */
static int device_by_query(int ordinal)
{
    int current;
    size_t free_bytes, total;
    if (!real_hipSetDevice || !real_hipMemGetInfo || REAL(hipGetDevice)(&current) != SUCCESS ||
        REAL(hipSetDevice)(ordinal) != SUCCESS)
        return DEVICE_UNKNOWN;
    devices_watch_queries();
    REAL(hipMemGetInfo)(&free_bytes, &total);
    int device = devices_last_query();
    REAL(hipSetDevice)(current);
    return device;
}

/* The device of an ordinal: HIP_VISIBLE_DEVICES renumbers ordinals, but not the limits. */
static int device_of(int ordinal)
{
    static _Atomic int known[REGION_DEVICES]; /* 1 + device */
    bool kept = ordinal < (int)REGION_DEVICES;
    if (ordinal < 0)
        return DEVICE_UNKNOWN;
    if (kept && known[ordinal])
        return known[ordinal] - 1;
    char text[32] = "";
    struct pci_address address;
    int device = DEVICE_UNKNOWN;
    if (real_hipDeviceGetPCIBusId &&
        REAL(hipDeviceGetPCIBusId)(text, sizeof text, ordinal) == SUCCESS &&
        read_address(text, &address))
        device = devices_at(address);
    if (device == DEVICE_UNKNOWN)
        device = device_by_query(ordinal);
    if (device == DEVICE_UNKNOWN)
        log_line(LOG_ERROR, "HIP device %d (%s): expected an agent of ROCr, found none; its managed "
                            "memory is refused",
                 ordinal, text);
    else if (kept)
        known[ordinal] = device + 1;
    return device;
}

static int current_device(void)
{
    int ordinal = -1;
    return REAL(hipGetDevice)(&ordinal) == SUCCESS ? device_of(ordinal) : DEVICE_UNKNOWN;
}

/* ---- managed memory ---- */

static error wrap_hipMallocManaged(void **pointer, size_t size, unsigned flags)
{
    int ordinal;
    /* Nothing to count; or no GPU, which HIP says itself. */
    if (!account_limits_any() || REAL(hipGetDevice)(&ordinal) != SUCCESS)
        return REAL(hipMallocManaged)(pointer, size, flags);
    int device = device_of(ordinal);
    if (device == DEVICE_UNKNOWN || !account_lend((unsigned)device, size))
        return OUT_OF_MEMORY;
    error result = REAL(hipMallocManaged)(pointer, size, flags);
    struct holding holding = {account_end_loan(), (unsigned)device}, displaced;
    if (result == SUCCESS && holding.bytes) {
        if (pointers_add(POINTER_MANAGED, (uintptr_t)*pointer, holding, &displaced)) {
            account_release(displaced.device, displaced.bytes);
            return SUCCESS;
        }
        REAL(hipFree)(*pointer);
        result = OUT_OF_MEMORY;
    }
    if (result != SUCCESS)
        account_release(holding.device, holding.bytes);
    return result;
}

static error wrap_hipMalloc(void **pointer, size_t size)
{
    return environment_oversubscribed() ? wrap_hipMallocManaged(pointer, size, ATTACH_GLOBAL)
                                        : REAL(hipMalloc)(pointer, size);
}

/* Before and after a release. The entry goes first: the address may be given out at once. */
static bool begin_release(const void *pointer, struct holding *holding)
{
    return pointers_any_managed() &&
           pointers_drop(POINTER_MANAGED, (uintptr_t)pointer, holding);
}

static error end_release(const void *pointer, struct holding holding, error result)
{
    struct holding displaced;
    if (result == SUCCESS)
        account_release(holding.device, holding.bytes);
    else
        pointers_add(POINTER_MANAGED, (uintptr_t)pointer, holding, &displaced);
    return result;
}

static error wrap_hipFree(void *pointer)
{
    struct holding holding;
    if (!begin_release(pointer, &holding))
        return REAL(hipFree)(pointer);
    return end_release(pointer, holding, REAL(hipFree)(pointer));
}

static error wrap_hipFreeAsync(void *pointer, void *stream)
{
    struct holding holding;
    if (!begin_release(pointer, &holding))
        return REAL(hipFreeAsync)(pointer, stream);
    return end_release(pointer, holding, REAL(hipFreeAsync)(pointer, stream));
}

static error wrap_hipHostFree(void *pointer)
{
    struct holding holding;
    if (!begin_release(pointer, &holding))
        return REAL(hipHostFree)(pointer);
    return end_release(pointer, holding, REAL(hipHostFree)(pointer));
}

/* ---- arrays ---- */

/* HIP answers a refusal with host memory and success. Undone, since the program asked for memory
 * of the device and is to hear that there is none. */
static error undo_if_spilled(error result, void **array, error (*undo)(void *))
{
    bool refused = account_saw_refusal();
    if (result != SUCCESS || !refused)
        return result;
    undo(*array);
    *array = NULL;
    return OUT_OF_MEMORY;
}

static error wrap_hipMallocArray(void **array, const void *format, size_t width, size_t height,
                                 unsigned flags)
{
    account_watch();
    error result = REAL(hipMallocArray)(array, format, width, height, flags);
    return undo_if_spilled(result, array, REAL(hipFreeArray));
}

static error wrap_hipMalloc3DArray(void **array, const void *format, struct extent extent,
                                   unsigned flags)
{
    account_watch();
    error result = REAL(hipMalloc3DArray)(array, format, extent, flags);
    return undo_if_spilled(result, array, REAL(hipFreeArray));
}

static error wrap_hipArrayCreate(void **array, const void *descriptor)
{
    account_watch();
    error result = REAL(hipArrayCreate)(array, descriptor);
    return undo_if_spilled(result, array, REAL(hipFreeArray));
}

static error wrap_hipArray3DCreate(void **array, const void *descriptor)
{
    account_watch();
    error result = REAL(hipArray3DCreate)(array, descriptor);
    return undo_if_spilled(result, array, REAL(hipFreeArray));
}

static error wrap_hipMallocMipmappedArray(void **array, const void *format, size_t width,
                                          size_t height, size_t depth, unsigned levels,
                                          unsigned flags)
{
    account_watch();
    error result =
        REAL(hipMallocMipmappedArray)(array, format, width, height, depth, levels, flags);
    return undo_if_spilled(result, array, REAL(hipFreeMipmappedArray));
}

static error wrap_hipMipmappedArrayCreate(void **array, const void *descriptor, unsigned levels)
{
    account_watch();
    error result = REAL(hipMipmappedArrayCreate)(array, descriptor, levels);
    return undo_if_spilled(result, array, REAL(hipMipmappedArrayDestroy));
}

/* ---- in the order of a stream ---- */

/* HIP 5.2 and 5.7 answer with success and no pointer where there is no memory. */
static error tell_refusal(error result, size_t size, void *const *pointer)
{
    return result == SUCCESS && size && !*pointer ? OUT_OF_MEMORY : result;
}

static error wrap_hipMallocAsync(void **pointer, size_t size, void *stream)
{
    return tell_refusal(REAL(hipMallocAsync)(pointer, size, stream), size, pointer);
}

static error wrap_hipMallocFromPoolAsync(void **pointer, size_t size, void *pool, void *stream)
{
    return tell_refusal(REAL(hipMallocFromPoolAsync)(pointer, size, pool, stream), size, pointer);
}

/* ---- graphs ---- */

/* A node that could never have its memory. HIP launches graphs whose nodes get none and says
 * nothing, on a GPU that is full as on one that is limited; here at least it can be told. */
static error wrap_hipGraphAddMemAllocNode(void **node, void *graph, void *const *after,
                                          size_t count, struct node_parameters *parameters)
{
    int device = parameters && parameters->location_type == LOCATION_DEVICE
                     ? device_of(parameters->location_id)
                     : DEVICE_UNKNOWN;
    if (device >= 0 && parameters->bytes > account_limit((unsigned)device))
        return OUT_OF_MEMORY;
    return REAL(hipGraphAddMemAllocNode)(node, graph, after, count, parameters);
}

/* ---- reports ---- */

/* From HIP 5.7 on the free memory is asked of ROCr, where hsa.c has capped it already. */
static error wrap_hipMemGetInfo(size_t *free_bytes, size_t *total)
{
    static _Atomic bool asks_rocr;
    if (asks_rocr || !account_limits_any())
        return REAL(hipMemGetInfo)(free_bytes, total);
    devices_watch_queries();
    error result = REAL(hipMemGetInfo)(free_bytes, total);
    asks_rocr = devices_last_query() != DEVICE_UNKNOWN;
    if (result != SUCCESS || asks_rocr)
        return result;
    int device = current_device();
    uint64_t left = device >= 0 ? account_left((unsigned)device) : REGION_NO_LIMIT;
    if (free_bytes && *free_bytes > left)
        *free_bytes = left;
    return result;
}

/* ---- resets ---- */

static void release_managed(int device)
{
    struct holding holding;
    while (device >= 0 && pointers_take_any(POINTER_MANAGED, (unsigned)device, &holding))
        account_release(holding.device, holding.bytes);
}

static error wrap_hipDeviceReset(void)
{
    int device = current_device();
    error result = REAL(hipDeviceReset)();
    if (result == SUCCESS)
        release_managed(device);
    return result;
}

static error wrap_hipDevicePrimaryCtxReset(int ordinal)
{
    int device = device_of(ordinal);
    error result = REAL(hipDevicePrimaryCtxReset)(ordinal);
    if (result == SUCCESS)
        release_managed(device);
    return result;
}

/* ---- finding functions by name ---- */

extern const struct symbol_hooks COPY_NAME(hip, COPY);

/* HIP may look into its own table instead of the one that was rewritten. */
static error lead_to_wrapper(error result, void **found)
{
    if (result == SUCCESS && found && *found) {
        function *address;
        memcpy(&address, found, sizeof address);
        address = symbols_wrapper(&COPY_NAME(hip, COPY), address);
        memcpy(found, &address, sizeof address);
    }
    return result;
}

static error wrap_hipGetProcAddress(const char *name, void **found, int version, uint64_t flags,
                                    void *answer)
{
    return lead_to_wrapper(REAL(hipGetProcAddress)(name, found, version, flags, answer), found);
}

static error wrap_hipGetProcAddress_spt(const char *name, void **found, int version,
                                        uint64_t flags, void *answer)
{
    return lead_to_wrapper(REAL(hipGetProcAddress_spt)(name, found, version, flags, answer), found);
}

static error wrap_hipGetDriverEntryPoint(const char *name, void **found, unsigned long long flags,
                                         void *answer)
{
    return lead_to_wrapper(REAL(hipGetDriverEntryPoint)(name, found, flags, answer), found);
}

static error wrap_hipGetDriverEntryPoint_spt(const char *name, void **found,
                                             unsigned long long flags, void *answer)
{
    return lead_to_wrapper(REAL(hipGetDriverEntryPoint_spt)(name, found, flags, answer), found);
}

static const struct symbol_hook hooks[] = {
    WRAPPED(hipMalloc),
    WRAPPED(hipMallocManaged),
    WRAPPED(hipFree),
    WRAPPED(hipFreeAsync),
    WRAPPED(hipHostFree),
    WRAPPED(hipMallocArray),
    WRAPPED(hipMalloc3DArray),
    WRAPPED(hipArrayCreate),
    WRAPPED(hipArray3DCreate),
    WRAPPED(hipMallocMipmappedArray),
    WRAPPED(hipMipmappedArrayCreate),
    WRAPPED(hipMallocAsync),
    WRAPPED(hipMallocFromPoolAsync),
    WRAPPED(hipGraphAddMemAllocNode),
    WRAPPED(hipMemGetInfo),
    WRAPPED(hipDeviceReset),
    WRAPPED(hipDevicePrimaryCtxReset),
    WRAPPED(hipGetProcAddress),
    WRAPPED(hipGetProcAddress_spt),
    WRAPPED(hipGetDriverEntryPoint),
    WRAPPED(hipGetDriverEntryPoint_spt),
    WANTED(hipGetDevice),
    WANTED(hipSetDevice),
    WANTED(hipDeviceGetPCIBusId),
    WANTED(hipFreeArray),
    WANTED(hipFreeMipmappedArray),
    WANTED(hipMipmappedArrayDestroy),
};

const struct symbol_hooks COPY_NAME(hip, COPY) = {hooks, sizeof hooks / sizeof *hooks};
