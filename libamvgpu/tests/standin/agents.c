/* The system, its agents and their memory pools. The numbers are those of an MI300X where it
 * matters little what they are. */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of headers newer than the ones built against. */
enum {
    AGENT_INFO_MEMORY_PROPERTIES = 0xA114,
    AGENT_INFO_SCRATCH_LIMIT_MAX = 0xA116,
    AGENT_INFO_SCRATCH_LIMIT_CURRENT = 0xA117
};

#define PUT(type, number) (*(type *)value = (type)(number))

hsa_status_t hsa_init(void)
{
    const char *mask = getenv("HSA_CU_MASK"), *visible = getenv("ROCR_VISIBLE_DEVICES");
    const char *skip = getenv("HSA_CU_MASK_SKIP_INIT");
    note_call("hsa_init HSA_CU_MASK=%s ROCR_VISIBLE_DEVICES=%s HSA_CU_MASK_SKIP_INIT=%s",
              mask ? mask : "(unset)", visible ? visible : "(unset)", skip ? skip : "(unset)");
    visible_gpus(); /* read when ROCr reads it */
    return settings()->gpus ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

hsa_status_t hsa_shut_down(void)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_status_string(hsa_status_t status, const char **text)
{
    *text = status ? "an error of the stand-in" : "success";
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value)
{
    switch ((int)attribute) {
    case HSA_SYSTEM_INFO_VERSION_MAJOR:
        PUT(uint16_t, 1);
        break;
    case HSA_SYSTEM_INFO_VERSION_MINOR:
        PUT(uint16_t, 15);
        break;
    case HSA_SYSTEM_INFO_TIMESTAMP:
        PUT(uint64_t, nanoseconds());
        break;
    case HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY:
        PUT(uint64_t, 1000000000);
        break;
    case HSA_SYSTEM_INFO_SIGNAL_MAX_WAIT:
        PUT(uint64_t, UINT64_MAX);
        break;
    case HSA_SYSTEM_INFO_ENDIANNESS:
        PUT(uint32_t, HSA_ENDIANNESS_LITTLE);
        break;
    case HSA_SYSTEM_INFO_MACHINE_MODEL:
        PUT(uint32_t, HSA_MACHINE_MODEL_LARGE);
        break;
    case HSA_SYSTEM_INFO_EXTENSIONS:
        memset(value, 0xff, 128);
        break;
    case HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED:
    case HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED:
    case HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED:
        PUT(bool, true);
        break;
    case HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT:
    case HSA_AMD_SYSTEM_INFO_MWAITX_ENABLED:
    case HSA_AMD_SYSTEM_INFO_XNACK_ENABLED:
        PUT(bool, false);
        break;
    default:
        PUT(uint8_t, 0);
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_extension_supported(uint16_t extension, uint16_t major, uint16_t minor,
                                            bool *result)
{
    *result = true;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_agent_extension_supported(uint16_t extension, hsa_agent_t agent, uint16_t major,
                                           uint16_t minor, bool *result)
{
    *result = true;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t same_address(const void *device, const void **host)
{
    *host = device;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t succeed(void)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_system_get_major_extension_table(uint16_t extension, uint16_t version,
                                                  size_t bytes, void *table)
{
    hsa_status_t (**entries)(void) = table;
    for (size_t i = 0; i < bytes / sizeof *entries; i++)
        entries[i] = succeed;
    if (extension == HSA_EXTENSION_AMD_LOADER)
        ((hsa_ven_amd_loader_1_00_pfn_t *)table)->hsa_ven_amd_loader_query_host_address =
            same_address;
    return HSA_STATUS_SUCCESS;
}

/* ---- agents ---- */

hsa_status_t hsa_iterate_agents(hsa_status_t (*visit)(hsa_agent_t, void *), void *data)
{
    const struct visible *gpus = visible_gpus();
    hsa_status_t status = visit((hsa_agent_t){CPU_AGENT}, data);
    for (unsigned i = 0; i < gpus->count && status == HSA_STATUS_SUCCESS; i++)
        status = visit((hsa_agent_t){gpus->agents[i]}, data);
    if (settings()->apu == APU && status == HSA_STATUS_SUCCESS)
        status = visit((hsa_agent_t){NPU_AGENT}, data);
    return status;
}

static hsa_status_t standard_info(uint64_t agent, int attribute, void *value)
{
    bool gpu = is_gpu(agent);
    switch (attribute) {
    case HSA_AGENT_INFO_NAME:
        strcpy(value, gpu ? settings()->architecture : agent == NPU_AGENT ? "aie2p" : "CPU");
        break;
    case HSA_AGENT_INFO_VENDOR_NAME:
        strcpy(value, gpu ? "AMD" : "CPU");
        break;
    case HSA_AGENT_INFO_FEATURE:
        PUT(uint32_t, gpu ? HSA_AGENT_FEATURE_KERNEL_DISPATCH : 0);
        break;
    case HSA_AGENT_INFO_MACHINE_MODEL:
        PUT(uint32_t, HSA_MACHINE_MODEL_LARGE);
        break;
    case HSA_AGENT_INFO_PROFILE:
        PUT(uint32_t, gpu && settings()->apu != APU_OF_ONE_NODE ? HSA_PROFILE_BASE
                                                                : HSA_PROFILE_FULL);
        break;
    case HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE:
        PUT(uint32_t, HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR);
        break;
    case HSA_AGENT_INFO_WAVEFRONT_SIZE:
        PUT(uint32_t, 64);
        break;
    case HSA_AGENT_INFO_WORKGROUP_MAX_DIM:
        for (int i = 0; i < 3; i++)
            ((uint16_t *)value)[i] = 1024;
        break;
    case HSA_AGENT_INFO_WORKGROUP_MAX_SIZE:
        PUT(uint32_t, 1024);
        break;
    case HSA_AGENT_INFO_GRID_MAX_DIM:
        PUT(hsa_dim3_t, ((hsa_dim3_t){UINT32_MAX, UINT32_MAX, UINT32_MAX}));
        break;
    case HSA_AGENT_INFO_GRID_MAX_SIZE:
        PUT(uint32_t, UINT32_MAX);
        break;
    case HSA_AGENT_INFO_FBARRIER_MAX_SIZE:
        PUT(uint32_t, 32);
        break;
    case HSA_AGENT_INFO_QUEUES_MAX:
        PUT(uint32_t, 128);
        break;
    case HSA_AGENT_INFO_QUEUE_MIN_SIZE:
        PUT(uint32_t, 64);
        break;
    case HSA_AGENT_INFO_QUEUE_MAX_SIZE:
        PUT(uint32_t, 131072);
        break;
    case HSA_AGENT_INFO_QUEUE_TYPE:
        PUT(uint32_t, HSA_QUEUE_TYPE_MULTI);
        break;
    case HSA_AGENT_INFO_NODE:
        PUT(uint32_t, agent - CPU_AGENT);
        break;
    case HSA_AGENT_INFO_DEVICE:
        PUT(uint32_t, gpu                  ? HSA_DEVICE_TYPE_GPU
                      : agent == NPU_AGENT ? HSA_DEVICE_TYPE_DSP
                                           : HSA_DEVICE_TYPE_CPU);
        break;
    case HSA_AGENT_INFO_CACHE_SIZE:
        memcpy(value, (uint32_t[]){32768, 4 << 20, 256 << 20, 0}, 16);
        break;
    case HSA_AGENT_INFO_ISA:
        PUT(uint64_t, 1);
        break;
    case HSA_AGENT_INFO_EXTENSIONS:
        memset(value, 0, 128);
        PUT(uint8_t, 0xff);
        break;
    case HSA_AGENT_INFO_VERSION_MAJOR:
    case HSA_AGENT_INFO_VERSION_MINOR:
        PUT(uint16_t, 1);
        break;
    case HSA_AGENT_INFO_FAST_F16_OPERATION:
        PUT(bool, true);
        break;
    default:
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    return HSA_STATUS_SUCCESS;
}

/* Bus, device and function; partitions of one GPU differ in the upper bits only. */
static uint32_t location_of(uint64_t agent)
{
    uint32_t gpu = (uint32_t)(agent - FIRST_GPU_AGENT);
    return settings()->partitions ? 0x8300 | gpu << 28 : (0x83 + gpu) << 8;
}

static hsa_status_t amd_info(uint64_t agent, int attribute, void *value)
{
    static uint32_t flush_registers[2];
    bool gpu = is_gpu(agent);
    switch (attribute) {
    case HSA_AMD_AGENT_INFO_CHIP_ID:
        PUT(uint32_t, 0x74a1);
        break;
    case HSA_AMD_AGENT_INFO_CACHELINE_SIZE:
        PUT(uint32_t, 128);
        break;
    case HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT:
    case HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT:
        PUT(uint32_t, 304);
        break;
    case HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY:
        PUT(uint32_t, 2100);
        break;
    case HSA_AMD_AGENT_INFO_DRIVER_NODE_ID:
    case HSA_AMD_AGENT_INFO_DRIVER_UID:
        PUT(uint32_t, agent - CPU_AGENT);
        break;
    case HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS:
    case HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU:
        PUT(uint32_t, 4);
        break;
    case HSA_AMD_AGENT_INFO_BDFID:
        PUT(uint32_t, location_of(agent));
        break;
    case HSA_AMD_AGENT_INFO_DOMAIN:
    case HSA_AMD_AGENT_INFO_IOMMU_SUPPORT:
        PUT(uint32_t, 0);
        break;
    case HSA_AMD_AGENT_INFO_MEMORY_WIDTH:
        PUT(uint32_t, 8192);
        break;
    case HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY:
        PUT(uint32_t, 1300);
        break;
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME:
        strcpy(value, "Stand-in");
        break;
    case HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU:
    case HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES:
        PUT(uint32_t, 32);
        break;
    case HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE:
    case HSA_AMD_AGENT_INFO_ASIC_REVISION:
        PUT(uint32_t, 1);
        break;
    case HSA_AMD_AGENT_INFO_HDP_FLUSH:
        PUT(hsa_amd_hdp_flush_t,
            ((hsa_amd_hdp_flush_t){&flush_registers[0], &flush_registers[1]}));
        break;
    case HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES:
        PUT(bool, true);
        break;
    case HSA_AMD_AGENT_INFO_UUID:
        write_uuid(value, agent);
        break;
    case HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS:
        PUT(bool, false);
        break;
    case HSA_AMD_AGENT_INFO_MEMORY_AVAIL:
        PUT(uint64_t, account_free(agent));
        break;
    case HSA_AMD_AGENT_INFO_TIMESTAMP_FREQUENCY:
        PUT(uint64_t, 100000000);
        break;
    case HSA_AMD_AGENT_INFO_ASIC_FAMILY_ID:
        PUT(uint32_t, 141);
        break;
    case HSA_AMD_AGENT_INFO_UCODE_VERSION:
        PUT(uint32_t, 100);
        break;
    case HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION:
        PUT(uint32_t, 20);
        break;
    case HSA_AMD_AGENT_INFO_NUM_SDMA_ENG:
        PUT(uint32_t, 2);
        break;
    case HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG:
        PUT(uint32_t, 6);
        break;
    case HSA_AMD_AGENT_INFO_NUM_XCC:
        PUT(uint32_t, 8);
        break;
    case HSA_AMD_AGENT_INFO_NEAREST_CPU:
        PUT(uint64_t, CPU_AGENT);
        break;
    case AGENT_INFO_MEMORY_PROPERTIES:
        memset(value, 0, 8);
        if (settings()->apu && gpu)
            PUT(uint8_t, 1 << 1); /* the flag of number 1 */
        break;
    case AGENT_INFO_SCRATCH_LIMIT_MAX:
    case AGENT_INFO_SCRATCH_LIMIT_CURRENT:
        PUT(uint64_t, 1 << 30);
        break;
    case HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS:
    case HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS:
        PUT(uint32_t, 16384);
        break;
    case HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS:
        PUT(uint32_t, 0x8000000);
        break;
    case HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS:
    case HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS:
        memcpy(value, (uint32_t[]){16384, 16384}, 8);
        break;
    case HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS:
        memcpy(value, (uint32_t[]){16384, 16384, 8192}, 12);
        break;
    case HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS:
        PUT(uint32_t, 8192);
        break;
    case HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES:
        PUT(uint32_t, 128);
        break;
    case HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES:
        PUT(uint32_t, 64);
        break;
    case HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS:
        PUT(uint32_t, 16);
        break;
    default:
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value)
{
    hsa_status_t status = standard_info(agent.handle, (int)attribute, value);
    return status ? amd_info(agent.handle, (int)attribute, value) : status;
}

hsa_status_t hsa_agent_iterate_isas(hsa_agent_t agent, hsa_status_t (*visit)(hsa_isa_t, void *),
                                    void *data)
{
    return is_gpu(agent.handle) ? visit((hsa_isa_t){1}, data) : HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_isa_get_info_alt(hsa_isa_t isa, hsa_isa_info_t attribute, void *value)
{
    if (attribute == HSA_ISA_INFO_NAME_LENGTH)
        PUT(uint32_t, strlen(settings()->isa) + 1);
    else if (attribute == HSA_ISA_INFO_NAME)
        strcpy(value, settings()->isa);
    else
        PUT(uint32_t, 0);
    return HSA_STATUS_SUCCESS;
}

/* ---- pools, which are also the regions of the older interface ---- */

static bool has_pool(uint64_t agent, enum pool kind)
{
    enum apu apu = settings()->apu;
    bool hive = strcmp(settings()->architecture, "gfx942") == 0;
    if (agent == NPU_AGENT)
        return kind == POOL_COARSE;
    switch (kind) {
    case POOL_COARSE: /* but for host memory of an APU of one node */
        return apu != APU_OF_ONE_NODE;
    case POOL_EXTENDED:
        return settings()->extended && !(apu == APU_OF_ONE_NODE && is_gpu(agent));
    case POOL_FINE: /* of a GPU only for others over XGMI */
        return !is_gpu(agent) || apu == NO_APU || (apu == APU && hive);
    case POOL_KERNARG:
        return !is_gpu(agent);
    case POOL_GROUP:
        return is_gpu(agent);
    default:
        return false;
    }
}

/* The handles of an agent's pools; how many. */
static unsigned pools_of(uint64_t agent, uint64_t *handles)
{
    unsigned count = 0;
    for (unsigned kind = 0; kind < POOL_KINDS; kind++)
        if (has_pool(agent, kind))
            handles[count++] = agent * 10 + kind;
    return count;
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(hsa_agent_t agent,
                                                hsa_status_t (*visit)(hsa_amd_memory_pool_t, void *),
                                                void *data)
{
    uint64_t handles[POOL_KINDS];
    unsigned count = pools_of(agent.handle, handles);
    hsa_status_t status = HSA_STATUS_SUCCESS;
    for (unsigned i = 0; i < count && status == HSA_STATUS_SUCCESS; i++)
        status = visit((hsa_amd_memory_pool_t){handles[i]}, data);
    return status;
}

/* A GPU's own, and those of the system, which it can reach. */
hsa_status_t hsa_agent_iterate_regions(hsa_agent_t agent, hsa_status_t (*visit)(hsa_region_t, void *),
                                       void *data)
{
    uint64_t handles[2 * POOL_KINDS];
    unsigned count = pools_of(agent.handle, handles);
    hsa_status_t status = HSA_STATUS_SUCCESS;
    if (is_gpu(agent.handle))
        count += pools_of(CPU_AGENT, handles + count);
    for (unsigned i = 0; i < count && status == HSA_STATUS_SUCCESS; i++)
        status = visit((hsa_region_t){handles[i]}, data);
    return status;
}

static uint64_t pool_size(uint64_t pool)
{
    if (!is_gpu(agent_of_pool(pool)))
        return UINT64_C(32) << 30;
    return pool % 10 == POOL_GROUP ? 65536 : settings()->vram;
}

static uint32_t pool_flags(uint64_t pool)
{
    switch (pool % 10) {
    case POOL_FINE:
        return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
    case POOL_EXTENDED:
        return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED;
    case POOL_KERNARG:
        return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED |
               HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT;
    default:
        return HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
    }
}

hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool,
                                          hsa_amd_memory_pool_info_t attribute, void *value)
{
    bool gpu = is_gpu(agent_of_pool(pool.handle));
    bool group = gpu && pool.handle % 10 == POOL_GROUP;
    switch ((int)attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_SEGMENT:
        PUT(uint32_t, group ? HSA_AMD_SEGMENT_GROUP : HSA_AMD_SEGMENT_GLOBAL);
        break;
    case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS:
        PUT(uint32_t, pool_flags(pool.handle));
        break;
    case HSA_AMD_MEMORY_POOL_INFO_SIZE:
    case HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE:
        PUT(size_t, pool_size(pool.handle));
        break;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED:
        PUT(bool, !group);
        break;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE:
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT:
        PUT(size_t, 4096);
        break;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE:
        PUT(size_t, gpu ? 2 << 20 : 4096);
        break;
    case HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL:
        PUT(bool, !gpu);
        break;
    case HSA_AMD_MEMORY_POOL_INFO_LOCATION:
        PUT(uint32_t, gpu ? HSA_AMD_MEMORY_POOL_LOCATION_GPU : HSA_AMD_MEMORY_POOL_LOCATION_CPU);
        break;
    default:
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_region_get_info(hsa_region_t region, hsa_region_info_t attribute, void *value)
{
    switch ((int)attribute) {
    case HSA_REGION_INFO_SEGMENT:
        PUT(uint32_t, region.handle % 10 == POOL_GROUP && is_gpu(agent_of_pool(region.handle))
                          ? HSA_REGION_SEGMENT_GROUP
                          : HSA_REGION_SEGMENT_GLOBAL);
        break;
    case HSA_REGION_INFO_SIZE:
    case HSA_REGION_INFO_ALLOC_MAX_SIZE:
        PUT(size_t, pool_size(region.handle));
        break;
    default:
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t agent, hsa_amd_memory_pool_t pool,
                                                hsa_amd_agent_memory_pool_info_t attribute,
                                                void *value)
{
    bool own = agent_of_pool(pool.handle) == agent.handle;
    switch ((int)attribute) {
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS:
        PUT(uint32_t, own ? HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT
                          : HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT);
        break;
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS:
        PUT(uint32_t, own ? 0 : 1);
        break;
    case HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO:
        PUT(hsa_amd_memory_pool_link_info_t,
            ((hsa_amd_memory_pool_link_info_t){.link_type = HSA_AMD_LINK_INFO_TYPE_PCIE,
                                               .atomic_support_32bit = true,
                                               .atomic_support_64bit = true}));
        break;
    default:
        break;
    }
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_agents_allow_access(uint32_t count, const hsa_agent_t *agents,
                                         const uint32_t *flags, const void *pointer)
{
    return HSA_STATUS_SUCCESS;
}
