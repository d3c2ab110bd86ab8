/* Code objects load, and their kernels do nothing; images are handles. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#define PUT(type, number) (*(type *)value = (type)(number))

enum { BYTES_PER_TEXEL = 4, IMAGE_ALIGNMENT = 256 };

hsa_status_t hsa_code_object_reader_create_from_memory(const void *code, size_t bytes,
                                                       hsa_code_object_reader_t *reader)
{
    reader->handle = 1;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t reader)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_create_alt(hsa_profile_t profile,
                                       hsa_default_float_rounding_mode_t rounding,
                                       const char *options, hsa_executable_t *executable)
{
    executable->handle = 1;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_destroy(hsa_executable_t executable)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_freeze(hsa_executable_t executable, const char *options)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_load_agent_code_object(hsa_executable_t executable, hsa_agent_t agent,
                                                   hsa_code_object_reader_t reader,
                                                   const char *options,
                                                   hsa_loaded_code_object_t *loaded)
{
    if (loaded)
        loaded->handle = 1;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_agent_global_variable_define(hsa_executable_t executable,
                                                         hsa_agent_t agent, const char *name,
                                                         void *address)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_get_symbol_by_name(hsa_executable_t executable, const char *name,
                                               const hsa_agent_t *agent,
                                               hsa_executable_symbol_t *symbol)
{
    symbol->handle = 1;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_iterate_symbols(hsa_executable_t executable,
                                            hsa_status_t (*visit)(hsa_executable_t,
                                                                  hsa_executable_symbol_t, void *),
                                            void *data)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_executable_symbol_get_info(hsa_executable_symbol_t symbol,
                                            hsa_executable_symbol_info_t attribute, void *value)
{
    static uint64_t kernel[64];
    switch ((int)attribute) {
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT:
    case HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS:
        PUT(uint64_t, (uintptr_t)kernel);
        break;
    case HSA_EXECUTABLE_SYMBOL_INFO_TYPE:
        PUT(uint32_t, HSA_SYMBOL_KIND_KERNEL);
        break;
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE:
        PUT(uint32_t, 256);
        break;
    case HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT:
        PUT(uint32_t, 16);
        break;
    default:
        PUT(uint32_t, 0);
    }
    return HSA_STATUS_SUCCESS;
}

/* ---- images ---- */

static size_t at_least_one(size_t number)
{
    return number ? number : 1;
}

hsa_status_t hsa_ext_image_data_get_info(hsa_agent_t agent, const hsa_ext_image_descriptor_t *image,
                                         hsa_access_permission_t access,
                                         hsa_ext_image_data_info_t *info)
{
    info->size = at_least_one(image->width) * at_least_one(image->height) *
                 at_least_one(image->depth) * at_least_one(image->array_size) * BYTES_PER_TEXEL;
    info->alignment = IMAGE_ALIGNMENT;
    return HSA_STATUS_SUCCESS;
}

/* Room for a hardware descriptor, which HIP copies out. Images and samplers live as long as the
 * process. */
static hsa_status_t make_descriptor(uint64_t *handle)
{
    *handle = (uintptr_t)calloc(1, 512);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_ext_image_create(hsa_agent_t agent, const hsa_ext_image_descriptor_t *image,
                                  const void *data, hsa_access_permission_t access,
                                  hsa_ext_image_t *created)
{
    return make_descriptor(&created->handle);
}

hsa_status_t hsa_ext_image_create_with_layout(hsa_agent_t agent,
                                              const hsa_ext_image_descriptor_t *image,
                                              const void *data, hsa_access_permission_t access,
                                              hsa_ext_image_data_layout_t layout, size_t row,
                                              size_t slice, hsa_ext_image_t *created)
{
    return make_descriptor(&created->handle);
}

hsa_status_t hsa_amd_image_create(hsa_agent_t agent, const hsa_ext_image_descriptor_t *image,
                                  const hsa_amd_image_descriptor_t *layout, const void *data,
                                  hsa_access_permission_t access, hsa_ext_image_t *created)
{
    return make_descriptor(&created->handle);
}

hsa_status_t hsa_ext_image_destroy(hsa_agent_t agent, hsa_ext_image_t image)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_ext_sampler_create(hsa_agent_t agent, const hsa_ext_sampler_descriptor_t *sampler,
                                    hsa_ext_sampler_t *created)
{
    return make_descriptor(&created->handle);
}

hsa_status_t hsa_ext_sampler_create_v2(hsa_agent_t agent, const void *sampler,
                                       hsa_ext_sampler_t *created)
{
    return make_descriptor(&created->handle);
}

hsa_status_t hsa_ext_sampler_destroy(hsa_agent_t agent, hsa_ext_sampler_t sampler)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_ext_image_export(hsa_agent_t agent, hsa_ext_image_t image, void *to, size_t row,
                                  size_t slice, const hsa_ext_image_region_t *region)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_ext_image_import(hsa_agent_t agent, const void *from, size_t row, size_t slice,
                                  hsa_ext_image_t image, const hsa_ext_image_region_t *region)
{
    return HSA_STATUS_SUCCESS;
}

/* ---- what HIP sets and never asks about again ---- */

hsa_status_t hsa_amd_register_system_event_handler(hsa_amd_system_event_callback_t callback,
                                                   void *data)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_coherency_set_type(hsa_agent_t agent, hsa_amd_coherency_type_t type)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_agent_set_async_scratch_limit(hsa_agent_t agent, size_t threshold)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_enable_logging(uint8_t *flags, void *file)
{
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_ais_file_read(void)
{
    return HSA_STATUS_ERROR;
}

hsa_status_t hsa_amd_ais_file_write(void)
{
    return HSA_STATUS_ERROR;
}
